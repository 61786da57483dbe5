"""RecBole trains as its users start it: `python train_recbole.py MODEL FOLDER STEPS SETTINGS`.

FOLDER holds the data set `data`, and perhaps the candidates that the trained model is to score
(`test_users.npy`, `candidates.npy`): their scores go to `scores.npy`. Prints the CPU milliseconds
of a step, and the mean loss. hpcncf is not installed here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.data.interaction import Interaction
from recbole.trainer import Trainer
from recbole.utils import get_model, init_seed

WARMUP_STEPS = 5
USERS_AT_ONCE = 1_000


class TimedLoader:
    """The loader's batches, epoch after epoch, and the CPU time after the warm-up."""

    def __init__(self, loader, steps):
        self.loader, self.steps, self.step_ms = loader, steps, 0.0

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def __len__(self):
        return self.steps

    def __iter__(self):
        began, batches = 0.0, chain.from_iterable(repeat(self.loader))
        for number, batch in enumerate(islice(batches, self.steps)):
            if number == WARMUP_STEPS:
                began = time.process_time()
            yield batch
        self.step_ms = 1e3 * (time.process_time() - began) / (self.steps - WARMUP_STEPS)


def scores(model, dataset, folder):
    """[test rows, candidates]: RecBole has numbers of its own for users and items."""
    users, candidates = np.load(folder / "test_users.npy"), np.load(folder / "candidates.npy")
    numbers = dataset.token2id(dataset.iid_field, np.arange(candidates.max() + 1).astype(str))
    parts = []
    model.eval()
    for start in range(0, len(users), USERS_AT_ONCE):
        part = slice(start, start + USERS_AT_ONCE)
        names = np.repeat(users[part], candidates.shape[1]).astype(str)
        pairs = {
            dataset.uid_field: torch.from_numpy(dataset.token2id(dataset.uid_field, names)),
            dataset.iid_field: torch.from_numpy(numbers[candidates[part]].ravel()),
        }
        with torch.no_grad():
            parts.append(model.predict(Interaction(pairs)).numpy())
    return np.concatenate(parts).reshape(candidates.shape)


def main():
    name, folder, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.chdir(folder)  # RecBole writes logs where it stands
    torch.set_num_threads(1)
    settings = {
        "data_path": str(folder),
        "load_col": {"inter": ["user_id", "item_id"]},
        "checkpoint_dir": str(folder / "saved"),
        "use_gpu": False,
        "seed": 1,
    }
    chosen = Config(name, dataset="data", config_dict=settings | json.loads(sys.argv[4]))
    init_seed(chosen["seed"], chosen["reproducibility"])
    dataset = create_dataset(chosen)
    loader, _, _ = data_preparation(chosen, dataset)
    timed = TimedLoader(loader, steps)
    model = get_model(name)(chosen, loader.dataset)
    # Its training loop as it stands; `fit` adds nothing to it but saving and validation.
    loss = Trainer(chosen, model)._train_epoch(timed, 0)
    if (folder / "candidates.npy").exists():
        np.save(folder / "scores.npy", scores(model, dataset, folder))
    print(f"measured: {timed.step_ms} {loss / steps}")


if __name__ == "__main__":
    main()
