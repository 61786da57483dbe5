"""RecBole's NeuMF on exported data: `python train_recbole.py FOLDER SETTINGS`."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import windows
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.data.interaction import Interaction
from recbole.model.general_recommender import NeuMF
from recbole.trainer import Trainer
from recbole.utils import init_seed

USERS_AT_ONCE = 1_000


def config(folder: Path, settings: dict[str, Any]) -> Config:
    """Its own names for hpcncf's settings."""
    ours = {
        "data_path": str(folder),
        "benchmark_filename": ["train", "valid", "test"],
        "load_col": {"inter": ["user_id", "item_id"]},
        "checkpoint_dir": str(folder / "recbole"),
        "use_gpu": False,
        "seed": settings["seed"],
        "mf_embedding_size": settings["gmf_width"],
        "mlp_embedding_size": settings["mlp_width"],
        "mlp_hidden_size": settings["layers"],
        "dropout_prob": 0.0,
        "learner": "adam",
        "learning_rate": settings["lr"],
        # It counts instances, not positives.
        "train_batch_size": settings["batch"] * (1 + settings["negatives"]),
        "train_neg_sample_args": {
            "distribution": "uniform",
            "sample_num": settings["negatives"],
            "alpha": 1.0,
            "dynamic": False,
            "candidate_num": 0,
        },
    }
    return Config(model="NeuMF", dataset="ncf", config_dict=ours)


def scores(model: NeuMF, dataset: Any, folder: Path) -> np.ndarray:
    """[test rows, 1 + negatives]: of the candidates, known to RecBole by numbers of its own."""
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


def main() -> None:
    talk, folder, settings = windows.opened(), Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    chosen = config(folder, settings)
    init_seed(chosen["seed"], chosen["reproducibility"])
    dataset = create_dataset(chosen)
    loader, _, _ = data_preparation(chosen, dataset)
    model = NeuMF(chosen, loader.dataset)
    trainer = Trainer(chosen, model)
    versions = {name: metadata.version(name) for name in ("recbole", "torch", "numpy")}
    talk.send({"versions": versions})
    # Its training loop as it stands; `fit` adds nothing to it but saving and validation.
    trainer._train_epoch(talk.batches((loader for _ in count()), len), 0)
    np.save(folder / "scores-recbole.npy", scores(model, dataset, folder))


if __name__ == "__main__":
    main()
