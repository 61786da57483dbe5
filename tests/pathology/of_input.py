"""Causes that lie in what feeds the step: samples made in Python, files, DataLoader workers."""

from __future__ import annotations

from typing import Final

from pathology.case import Beside, Case, Job, Run

LOADED: Final = ("train.py", "--seconds", "10", "--width", "64")

PYTHON: Final = [
    Case(
        "python_input",
        "per-sample",
        Job({"training.loader": "per_sample", "training.epochs": 5}, data="small"),
        "every sample is one `__getitem__` and draws its negatives in Python; the step is small",
        22,
    ),
    Case(
        "python_input",
        "per-sample-two-cores",
        Job(
            {
                "training.loader": "per_sample",
                "training.epochs": 5,
                "resources.cpus_per_task": 2,
            },
            data="small",
        ),
        "the forum's case: a second core waits for the samples that one thread of Python makes",
        22,
        cores=2,
    ),
    Case(
        "python_input",
        "per-sample-rowwise",
        Job(
            {
                "training.loader": "per_sample",
                "training.engine": "rowwise",
                "training.epochs": 5,
            },
            data="small",
        ),
        "the step is rowwise's, so that the samples are most of the time",
        20,
    ),
    Case(
        "python_input",
        "drawn",
        Run((*LOADED, "--samples", "drawn")),
        "`__getitem__` lists all items that the user has not, to draw one: work, not waiting",
        16,
    ),
    Case(
        "python_input",
        "parsed",
        Run((*LOADED, "--samples", "parsed")),
        "`__getitem__` writes and parses text, on one of two cores",
        16,
        cores=2,
    ),
]

FILES: Final = [
    Case(
        "input_io",
        "file-server",
        Run((*LOADED, "--samples", "remote", "--batch", "256")),
        "each sample waits 2 ms, as for a file server; meanwhile the core has nothing to do",
        16,
        short=True,
    ),
    Case(
        "input_io",
        "file-server-workers",
        Run((*LOADED, "--samples", "remote", "--batch", "256", "--workers", "2")),
        "two workers wait instead; still nobody computes",
        16,
        cores=2,
    ),
    Case(
        "input_io",
        "slow-disk",
        Run((*LOADED, "--samples", "file", "--file", "{file}", "--batch", "64")),
        "each sample reads 64 KiB that is not in memory from a disk that gives 8 MiB a second",
        16,
        beside=Beside(read_mib_per_s=8),
        needs=frozenset({"blkio cgroup"}),
    ),
]

WORKERS: Final = [
    Case(
        "worker_overhead",
        "batched-one-core",
        Job(
            {
                "training.loader": "batched",
                "training.num_workers": 2,
                "training.engine": "rowwise",
                "training.epochs": 12,
            },
            data="small",
        ),
        "whole batches are cheap to make; to send them from two workers on the one core is not",
        22,
    ),
    Case(
        "worker_overhead",
        "batched-two-cores",
        Job(
            {
                "training.loader": "batched",
                "training.num_workers": 2,
                "training.engine": "rowwise",
                "training.epochs": 12,
                "resources.cpus_per_task": 2,
                "training.threads": 1,
            },
            data="small",
        ),
        "the worker's batches cost more to send than to make",
        20,
        cores=2,
    ),
    Case(
        "worker_overhead",
        "short-epochs",
        Job(
            {
                "training.loader": "batched",
                "training.num_workers": 4,
                "training.global_batch_size": 4096,
                "training.epochs": 120,
            },
            data="users",
        ),
        "an epoch has three steps, and four workers are started for each",
        25,
        cores=1,
    ),
]

CASES: Final = [*PYTHON, *FILES, *WORKERS]
