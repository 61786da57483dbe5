"""A job, its steps, and the earlier runs that the accounting keeps of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from fake_slurm.request import Request

ENDED: Final = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
)
SHORT: Final = {
    "PENDING": "PD",
    "RUNNING": "R",
    "COMPLETING": "CG",
    "COMPLETED": "CD",
    "FAILED": "F",
    "CANCELLED": "CA",
    "TIMEOUT": "TO",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PREEMPTED": "PR",
}


@dataclass
class Step:
    """A row of the accounting; `batch`, `extern`, or what srun started."""

    name: str
    """What follows the job's id: batch, extern, 0, 1, ..."""
    command: str
    nodes: list[str]
    tasks: int
    cpus: int
    """All of its tasks' together."""
    began: float = field(default_factory=time.time)
    ended: float | None = None
    state: str = "RUNNING"
    exit_code: tuple[int, int] = (0, 0)
    """Code and signal."""
    cpu_s: float = 0.0
    max_rss_kib: int = 0


@dataclass
class Run:
    """What the accounting keeps of one start of a job."""

    state: str
    exit_code: tuple[int, int]
    nodes: list[str]
    submitted: float
    began: float | None
    ended: float | None
    steps: list[Step]
    reason: str
    by: int | None = None


@dataclass(eq=False)
class Job:
    number: int
    """Slurm's raw id. An element of an array gets one of its own when it starts."""
    request: Request
    user: int
    array: int | None = None
    element: int | None = None
    group: list[Job] = field(default_factory=list, repr=False)
    """All elements of its array."""
    state: str = "PENDING"
    reason: str = "None"
    submitted: float = field(default_factory=time.time)
    eligible: float = 0.0
    held: bool = False
    began: float | None = None
    ended: float | None = None
    nodes: list[str] = field(default_factory=list)
    restarts: int = 0
    exit_code: tuple[int, int] = (0, 0)
    steps: list[Step] = field(default_factory=list)
    earlier: list[Run] = field(default_factory=list)
    by: int | None = None
    """Who cancelled it."""
    limit_min: float = 0.0
    warned: float | None = None
    numbered: bool = False
    """Whether `number` is its own, not its array's."""
    nameless: bool = False
    """Cancelled by its element's number before it started: Slurm forgets which it was."""
    completing: bool = False
    """It has ended, some of its processes have not."""
    again: bool = False
    """Whether it goes back to the queue when they have."""
    deadline: float | None = None
    """When they are killed."""

    @property
    def name(self) -> str:
        if self.array is None or self.nameless:
            return str(self.number)
        return f"{self.array}_{self.element}"

    @property
    def forgotten(self) -> bool:
        """Of those that Slurm cannot name, the last stands for all, once no other waits.

        Unless the array's number, under which it stands, is that of an element that started.
        """
        if not self.nameless:
            return False
        if any(one.numbered and one.number == self.array for one in self.group):
            return True
        left = [one for one in self.group if not one.numbered and (one.nameless or not one.over)]
        return self is not left[-1] or any(not one.over for one in left)

    @property
    def over(self) -> bool:
        return self.state in ENDED

    @property
    def shown(self) -> str:
        """squeue's word: a job whose processes are not gone yet is completing."""
        return "COMPLETING" if self.completing else self.state

    @property
    def cpus(self) -> int:
        return self.request.cpus_per_node * self.request.nodes

    @property
    def partition(self) -> str:
        return self.request.asked.partition or "cpu"

    @property
    def title(self) -> str:
        asked, command = self.request.asked, self.request.command
        default = "wrap" if asked.wrap is not None else (command or "sbatch").rsplit("/", 1)[-1]
        return asked.job_name or default

    @property
    def requeues(self) -> bool:
        return not self.request.asked.no_requeue

    def elapsed(self) -> int:
        if self.began is None:
            return 0
        return int((self.ended or time.time()) - self.began)

    def run(self, state: str | None = None) -> Run:
        return Run(
            state or self.state,
            self.exit_code,
            list(self.nodes),
            self.submitted,
            self.began,
            self.ended,
            self.steps,
            self.reason,
            self.by,
        )


def folded(nodes: list[str]) -> str:
    """`node[1-3,5]`, as Slurm writes a list of nodes."""
    numbers = sorted(int(node.removeprefix("node")) for node in nodes)
    spans = spanned(numbers)
    if len(numbers) < 2:
        return "".join(nodes)
    return f"node[{spans}]"


def spanned(numbers: list[int]) -> str:
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(one) if one == last else f"{one}-{last}" for one, last in found)
