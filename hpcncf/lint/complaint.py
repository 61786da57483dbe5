"""One thing that a script does at a price, and what to do instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, order=True)
class Complaint:
    line: int
    """From 1."""
    rule: str
    message: str


# What is found, in the order of docs/lint.md.
RULES: Final = {
    "set-difference": "`list(a - b)` of sets makes all of it to use a part of it",
    "pandas-per-sample": "`.iloc`, `.loc`, `.iat`, `.at` in `__getitem__` walk pandas for one row",
    "tensor-per-sample": "a tensor is made for each sample in `__getitem__`",
    "no-shuffle": "a training DataLoader that gives every epoch in the same order",
    "no-set-epoch": "DistributedSampler without `set_epoch` shuffles every epoch alike",
    "kept-graph": "a loss that is kept keeps its graph, and memory grows",
    "synchronised-step": "`.item()` of every step waits for the GPU",
    "too-many-workers": "DataLoader workers and their rank have fewer cores than processes",
    "fixed-port": "a fixed MASTER_PORT meets that of another task of the array on the same node",
    "srun-without-cores": "srun of Slurm 22.05 to 23.02 does not pass on --cpus-per-task",
    "too-many-threads": "more threads than the cores that are asked for",
    "ranks-without-launcher": "several tasks are asked for and one process is started",
    "one-task-for-nodes": "several nodes are asked for and nothing starts a process on the others",
}
