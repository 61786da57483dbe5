"""A case: a real short job whose one cause is known, because it was made on purpose."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from hpcncf_analysis.diagnosis.evidence import Cause

Label = Cause | Literal["healthy"]
Need = Literal["two cores", "cpu cgroup", "memory cgroup", "blkio cgroup", "compiler", "gpu"]
Data = Literal["small", "users", "catalogue", "wide"]

FOLDER: Final = Path(__file__).parent
PROGRAMS: Final = FOLDER / "programs"
DATA: Final[dict[Data, str]] = {
    "small": "--like frappe",
    "users": "--users 6000 --items 1000 --rows 12000 --test-negatives 300",
    "catalogue": "--users 4000 --items 40000 --rows 40000",
    "wide": "--users 150000 --items 60000 --rows 150000 --test-negatives 1",
}
"""Name -> how `hpcncf data prepare synthetic` makes it."""


class Beside(BaseModel):
    """What happens to the job while it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
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


class Case(BaseModel):
    """One job, and what its diagnosis has to be: `hpcncf run -- PROGRAM` if `run` names one, else
    `hpcncf submit JOB.yaml --cluster local --wait`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    label: Label
    way: str
    """Distinguishes the ways of one cause."""
    why: str = ""
    """Why the label is the truth of it."""
    run: str = ""
    """A file of `programs/` and its arguments; `{file}` stands for a large file, `{cpu}` for the
    first CPU, `{folder}` for a folder of the suite's."""
    program: str = ""
    """The same, for the program of a job file."""
    data: Data | None = None
    """For our own training."""
    settings: dict[str, Any] = {}
    """Of the job file, dotted as in `-s`."""
    seconds: int = 1
    """About what it takes on a quiet machine, start-up included."""
    cores: int = 1
    """CPUs that everything of it is bound to from the outside."""
    env: dict[str, str] = {}
    beside: Beside = Beside()
    needs: frozenset[Need] = frozenset()
    short: bool = False
    """In CI, too."""

    @property
    def name(self) -> str:
        return f"{self.label}.{self.way}"

    @property
    def words(self) -> list[str]:
        """Of its program; empty for our own training."""
        return (self.run or self.program).split()

    @cached_property
    def required(self) -> frozenset[Need]:
        return self.needs | ({"two cores"} if self.cores > 1 else set())


def _read_cases() -> list[Case]:
    named: dict[str, Any] = yaml.safe_load((FOLDER / "cases.yaml").read_text())
    split = {name: name.partition(".") for name in named}
    return [
        Case(label=split[name][0], way=split[name][2], **plain) for name, plain in named.items()
    ]


CASES: Final = _read_cases()
