"""What a test says about the pretended cluster: $FAKE_SLURM/settings.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = "settings.json"


@dataclass(frozen=True)
class Partition:
    name: str
    nodes: tuple[str, ...]
    tier: int
    """Jobs of a higher tier preempt those of a lower one."""
    max_min: int | None


@dataclass(frozen=True)
class Settings:
    running: bool = False
    """Whether jobs start; else all stay pending."""
    second_s: float = 1.0
    """How long a second of limits and delays takes; waiting for a minute need not take one."""
    node_count: int = 4
    cpus: int = 16
    """Of each node."""
    mem_mib: int = 64000
    gpus: int = 1
    """Of the last node."""
    max_array_size: int = 1001
    max_submit: int | None = None
    """Jobs that one user may have in the queue (MaxSubmitJobs)."""
    accounts: tuple[str, ...] | None = None
    """Those that there are; None: every one."""
    requeue_delay_s: float = 9.0
    kill_wait_s: float = 2.0
    controller: bool = True
    """False: slurmctld does not answer."""
    database: bool = True
    """False: slurmdbd does not answer; it learns later what happened."""
    accounting: bool = True
    """False: there is no slurmdbd."""
    owner: int | None = None
    """The controller ends with this process."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"node{number + 1}" for number in range(self.node_count))

    @property
    def partitions(self) -> dict[str, Partition]:
        all_of_them = (
            Partition("cpu", self.nodes, 10, 60),
            Partition("short", self.nodes, 1, 5),
            Partition("gpu", self.nodes[-1:], 10, 60),
        )
        return {one.name: one for one in all_of_them}

    def gpus_of(self, node: str) -> int:
        return self.gpus if node == self.nodes[-1] else 0


def read(folder: Path) -> Settings:
    try:
        return Settings(**json.loads((folder / FILE).read_text()))
    except FileNotFoundError:
        return Settings()


def change(folder: Path, **settings: object) -> None:
    """Written whole: the controller may read at any time."""
    file = folder / FILE
    known = json.loads(file.read_text()) if file.exists() else {}
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(known | settings))
    partial.replace(file)
