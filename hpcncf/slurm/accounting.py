"""What Slurm's accounting says of the steps that ran our ranks: CPU seconds, memory, every start.

`sacct -D` shows earlier starts of a requeued job, too, which plain sacct hides. A job's own row
has no memory, and with `-X` no CPU time either: both come from the steps.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from hpcncf.slurm import commands
from hpcncf.slurm.times import seconds

FIELDS: Final = "JobID,State,Start,End,ElapsedRaw,TotalCPU,MaxRSS"
# Seconds since 1970: sacct's own times have no zone.
TIMES: Final = {"SLURM_TIME_FORMAT": "%s"}
# A step is known to Slurm a moment before its ranks live, and a moment after they died.
SLACK_S: Final = 15.0
_MIB: Final = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}


@dataclass(frozen=True)
class Account:
    """One start of one step."""

    FIGURES: ClassVar = ("state", "elapsed_s", "cpu_s", "max_rss_mib")

    state: str
    """Slurm's own word."""
    started: float
    """Seconds since 1970."""
    ended: float | None
    """None while it runs."""
    elapsed_s: float
    cpu_s: float | None
    """User and system, of all its tasks."""
    max_rss_mib: float | None
    """The largest task's resident memory, sampled; by cgroup without mapped files."""

    def figures(self) -> dict[str, str | float | None]:
        return {name: getattr(self, name) for name in self.FIGURES}


def accounts(job_ids: Sequence[str], problems: list[str]) -> dict[str, list[Account]]:
    """Job or array element -> its steps, every start of them; why there are none in `problems`."""
    options = ("--duplicates", "--noheader", "--parsable2", f"--format={FIELDS}")
    return read(commands.of_jobs(["sacct", *options], job_ids, problems, TIMES))


def read(text: str) -> dict[str, list[Account]]:
    """The numbered steps of what sacct printed: those that srun started."""
    found: dict[str, list[Account]] = defaultdict(list)
    for line in text.splitlines():
        cells = line.split("|")
        job_id, _, step = cells[0].partition(".")
        if len(cells) == len(FIELDS.split(",")) and step.isdecimal() and cells[2].isdecimal():
            found[job_id].append(_account(cells))
    return dict(found)


def _account(cells: Sequence[str]) -> Account:
    _, state, started, ended, elapsed, cpu, rss = cells
    return Account(
        state=state.split()[0].rstrip("+") if state else "",
        started=float(started),
        ended=float(ended) if ended.isdecimal() else None,
        elapsed_s=float(elapsed) if elapsed.isdecimal() else 0.0,
        cpu_s=seconds(cpu),
        max_rss_mib=mebibytes(rss),
    )


def at(steps: Sequence[Account], moment: float) -> Account | None:
    """The step that a process which started then belongs to: the last to begin before it."""
    held = [
        step
        for step in steps
        if step.started - SLACK_S <= moment and (step.ended is None or moment <= step.ended)
    ]
    return max(held, key=lambda step: step.started, default=None)


def mebibytes(text: str) -> float | None:
    """sacct's `153364K`. It says 0 where it never sampled, which is not known."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    amount = float(found[1]) * _MIB[found[2]] if found else 0.0
    return amount or None
