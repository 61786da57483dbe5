"""RecBole trains on its own, as its users start it: `python train_recbole_stock.py MODEL FOLDER
STEPS`. Prints the CPU milliseconds of a step."""

from __future__ import annotations

import os
import sys
import time
from itertools import islice

import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.trainer import Trainer
from recbole.utils import get_model, init_seed

WARMUP_STEPS = 5


class Timed:
    """The loader's first batches, and the CPU time after the warm-up."""

    def __init__(self, loader, steps):
        self.loader, self.steps, self.step_ms = loader, steps, 0.0

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def __len__(self):
        return self.steps

    def __iter__(self):
        began = 0.0
        for number, batch in enumerate(islice(self.loader, self.steps)):
            if number == WARMUP_STEPS:
                began = time.process_time()
            yield batch
        self.step_ms = 1e3 * (time.process_time() - began) / (self.steps - WARMUP_STEPS)


def main():
    name, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.chdir(folder)  # RecBole writes logs where it stands
    torch.set_num_threads(1)
    settings = {
        "data_path": folder,
        "load_col": {"inter": ["user_id", "item_id"]},
        "eval_args": {"split": {"RS": [0.98, 0.01, 0.01]}},
        "checkpoint_dir": f"{folder}/saved",
        "use_gpu": False,
        "seed": 1,
    }
    chosen = Config(model=name, dataset="made", config_dict=settings)
    init_seed(chosen["seed"], chosen["reproducibility"])
    dataset = create_dataset(chosen)
    loader, _, _ = data_preparation(chosen, dataset)
    timed = Timed(loader, steps)
    model = get_model(name)(chosen, loader.dataset)
    loss = Trainer(chosen, model)._train_epoch(timed, 0)
    print(f"measured: {timed.step_ms} {loss / steps}")


if __name__ == "__main__":
    main()
