"""cornac trains as its users start it: `python train_cornac.py NeuMF FOLDER STEPS SETTINGS`.

FOLDER holds the training pairs, and perhaps the candidates that the trained model is to score:
their scores go to `scores.npy`. Prints the CPU milliseconds of a step. hpcncf is not installed
here.
"""

from __future__ import annotations

import json
import sys
import time
from collections import OrderedDict
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import torch
from cornac.data import Dataset
from cornac.models import NeuMF

WARMUP_STEPS = 5


class TimedDataset(Dataset):
    """Its data set: so many batches, epoch after epoch, and the CPU time after the warm-up."""

    steps, step_ms = 0, 0.0

    def uir_iter(self, *args, **kwargs):
        epochs = (super(TimedDataset, self).uir_iter(*args, **kwargs) for _ in count())
        began = 0.0
        for number, batch in enumerate(islice(chain.from_iterable(epochs), self.steps)):
            if number == WARMUP_STEPS:
                began = time.process_time()
            yield batch
        self.step_ms = 1e3 * (time.process_time() - began) / (self.steps - WARMUP_STEPS)


def main():
    folder, steps, settings = Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    torch.set_num_threads(1)
    # Users and items keep their numbers, also those that no training pair has.
    known = [OrderedDict((n, n) for n in range(settings.pop(name))) for name in ("users", "items")]
    triplets = ((user, item, 1.0) for user, item in np.load(folder / "train.npy").tolist())
    data = TimedDataset.build(
        triplets, global_uid_map=known[0], global_iid_map=known[1], seed=settings["seed"]
    )
    data.steps = steps
    model = NeuMF(num_epochs=1, learner="adam", backend="pytorch", verbose=False, **settings)
    model.fit(data)
    if (folder / "candidates.npy").exists():
        users, candidates = np.load(folder / "test_users.npy"), np.load(folder / "candidates.npy")
        pairs = zip(users.tolist(), candidates, strict=True)
        scores = [model.score(user)[items] for user, items in pairs]
        np.save(folder / "scores.npy", np.array(scores))
    print(f"measured: {data.step_ms}")


if __name__ == "__main__":
    main()
