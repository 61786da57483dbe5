"""Causes that lie between ranks: what they exchange, a slow one, shards that are not equal."""

from __future__ import annotations

from typing import Any, Final

from pathology.case import Beside, Case, Job

TWO: Final[dict[str, Any]] = {"resources.tasks_per_node": 2}
TRAINED: Final = "train.py --seconds 8 --threads 1"
COMPUTING: Final = f"{TRAINED} --batch 4096 --width 512"

SYNC: Final = [
    Case(
        "sync_bound",
        "small-steps",
        Job(
            TWO | {"training.global_batch_size": 64, "training.epochs": 2},
            data="small",
        ),
        "a step of 64 positives takes a millisecond, an all-reduce over gloo as much again",
        20,
        cores=2,
    ),
    Case(
        "sync_bound",
        "dense-tables",
        Job(
            TWO
            | {
                "training.optimizer": "sgd",
                "training.evaluation": "none",
                "training.max_steps": 240,
            },
            data="wide",
        ),
        "every step all-reduces the gradient of every row, of which it touched one in a hundred",
        20,
        cores=2,
    ),
]

STRAGGLER: Final = [
    Case(
        "straggler",
        "halted",
        Job(
            TWO
            | {
                "training.engine": "rowwise",
                "training.sync": "rows",
                "training.global_batch_size": 4096,
                "training.epochs": 12,
            },
            data="small",
        ),
        "rank 1 is stopped two thirds of the time and has as much to do as rank 0",
        25,
        cores=2,
        beside=Beside(slowed_rank=1),
    ),
]

IMBALANCE: Final = [
    Case(
        "load_imbalance",
        "more-on-1",
        Job(TWO, program=f"{COMPUTING} --more-on 1"),
        "rank 1 has three times the instances of rank 0, and is as fast with each of them",
        14,
        cores=2,
    ),
]

CASES: Final = [*SYNC, *STRAGGLER, *IMBALANCE]
