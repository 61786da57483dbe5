"""Causes that lie in what feeds the step: samples made in Python, files, DataLoader workers."""

from __future__ import annotations

from typing import Final

from pathology.case import Beside, Case, Job, Run

LOADED: Final = "train.py --seconds 8 --width 64"
REMOTE: Final = "train.py --seconds 6.5 --width 64 --samples remote --batch 256"

PYTHON: Final = [
    Case(
        "python_input",
        "per-sample-two-cores",
        Job(
            {
                "training.loader": "per_sample",
                "training.epochs": 3,
                "resources.cpus_per_task": 2,
            },
            data="small",
        ),
        "the forum's case: a second core waits for the samples that one thread of Python makes",
        15,
        cores=2,
    ),
]

FILES: Final = [
    Case(
        "input_io",
        "file-server",
        Run(REMOTE),
        "each sample waits 2 ms, as for a file server; meanwhile the core has nothing to do",
        11,
        short=True,
    ),
    Case(
        "input_io",
        "slow-disk",
        Run(f"{LOADED} --samples file --file {{file}} --batch 64"),
        "each sample reads 64 KiB that is not in memory from a disk that gives 8 MiB a second",
        14,
        beside=Beside(read_mib_per_s=8),
        needs=frozenset({"blkio cgroup"}),
    ),
]

WORKED: Final = {
    "training.loader": "batched",
    "training.engine": "rowwise",
    "training.threads": 1,
    "training.negatives": 1,
    "training.persistent_workers": False,
    "training.evaluation": "none",
    "training.checkpoint_every": 0,
    "resources.cpus_per_task": 2,
}

WORKERS: Final = [
    Case(
        "worker_overhead",
        "one",
        Job(
            WORKED
            | {
                "training.num_workers": 1,
                "training.global_batch_size": 2048,
                "training.epochs": 100,
            },
            data="users",
        ),
        "an epoch has six steps, and takes less than its worker's start",
        18,
        cores=2,
    ),
]

CASES: Final = [*PYTHON, *FILES, *WORKERS]
