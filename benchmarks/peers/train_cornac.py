"""cornac's NeuMF on exported data: `python train_cornac.py FOLDER SETTINGS`."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Iterator
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import windows
from cornac.data import Dataset
from cornac.models import NeuMF


class Paced(Dataset):  # type: ignore[misc]  # cornac has no types
    """Its data set, whose batches of all epochs come in the benchmark's windows."""

    talk: windows.Windows

    def uir_iter(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        epochs = (super(Paced, self).uir_iter(*args, **kwargs) for _ in count())
        yield from self.talk.batches(epochs, lambda batch: len(batch[0]))


def read(folder: Path, users: int, items: int, seed: int) -> Paced:
    """Users and items keep hpcncf's numbers, also those that no training pair has."""
    train = np.load(folder / "train.npy").tolist()
    known = [OrderedDict((number, number) for number in range(end)) for end in (users, items)]
    triplets = ((user, item, 1.0) for user, item in train)
    data: Paced = Paced.build(triplets, global_uid_map=known[0], global_iid_map=known[1], seed=seed)
    return data


def main() -> None:
    talk, folder, settings = windows.opened(), Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    data = read(folder, settings["users"], settings["items"], settings["seed"])
    data.talk = talk
    model = NeuMF(
        num_factors=settings["gmf_width"],
        layers=[2 * settings["mlp_width"], *settings["layers"]],
        num_epochs=1,
        batch_size=settings["batch"],
        num_neg=settings["negatives"],
        lr=settings["lr"],
        learner="adam",
        backend="pytorch",
        verbose=False,
        seed=settings["seed"],
    )
    versions = {name: metadata.version(name) for name in ("cornac", "torch", "numpy")}
    talk.send({"versions": versions})
    model.fit(data)
    users, candidates = np.load(folder / "test_users.npy"), np.load(folder / "candidates.npy")
    pairs = zip(users.tolist(), candidates, strict=True)
    found = [model.score(user)[items] for user, items in pairs]
    np.save(folder / "scores-cornac.npy", np.array(found))


if __name__ == "__main__":
    main()
