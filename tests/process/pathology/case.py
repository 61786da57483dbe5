"""A case: a real short job whose one cause is known, because it was made on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from hpcncf_analysis.diagnosis.evidence import Cause

Label = Cause | Literal["healthy"]
Need = Literal["two cores", "cpu cgroup", "memory cgroup", "blkio cgroup", "compiler", "gpu"]

PROGRAMS: Final = Path(__file__).parent / "programs"

DATA: Final[Mapping[str, str]] = {
    "small": "--like frappe",
    "users": "--users 6000 --items 1000 --rows 12000 --test-negatives 300",
    "catalogue": "--users 4000 --items 40000 --rows 40000",
    "wide": "--users 150000 --items 60000 --rows 150000 --test-negatives 1",
}
"""Name -> how `hpcncf data prepare synthetic` makes it."""


@dataclass(frozen=True)
class Job:
    """Started by `hpcncf submit JOB.yaml --cluster local --wait`."""

    settings: Mapping[str, Any]
    """Dotted, as in `-s`."""
    data: str | None = None
    """One of DATA, for our own training."""
    program: str = ""
    """A file of `programs/` and its arguments, for a program of the user's own."""


@dataclass(frozen=True)
class Run:
    """Started by `hpcncf run -- COMMAND`."""

    program: str
    """A file of `programs/` and its arguments; `{file}` stands for a large file, `{cpu}` for the
    first CPU, `{folder}` for a folder of the suite's."""


@dataclass(frozen=True)
class Beside:
    """What happens to the job while it runs."""

    neighbour: tuple[int, ...] = ()
    """Places among the case's CPUs on which a foreign process is busy all the time."""
    slowed_rank: int | None = None
    """This rank is stopped for two thirds of its time, once it trains."""
    cpu_quota: float | None = None
    """Cores' worth of time of a control group that the job is started in."""
    memory_mib: int | None = None
    """Memory of one."""
    read_mib_per_s: float | None = None
    """What it may read from the disk that holds the work."""


@dataclass(frozen=True)
class Case:
    """One job, and what its diagnosis has to be."""

    label: Label
    way: str
    """Distinguishes the ways of one cause."""
    start: Job | Run
    why: str
    """Why the label is the truth of it."""
    seconds: int
    """About what it takes on a quiet machine, start-up included."""
    cores: int = 1
    """CPUs that everything of it is bound to from the outside."""
    env: Mapping[str, str] = field(default_factory=dict)
    beside: Beside = Beside()
    needs: frozenset[Need] = frozenset()
    short: bool = False
    """In CI, too."""

    @property
    def name(self) -> str:
        return f"{self.label}.{self.way}"

    @property
    def required(self) -> frozenset[Need]:
        return self.needs | ({"two cores"} if self.cores > 1 else set())
