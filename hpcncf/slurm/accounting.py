"""Slurm's accounting of a run's steps, and whether the records agree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from hpcncf.records.schema import RankRecord
from hpcncf.slurm.query import query_jobs, seconds

# `sacct -D` shows earlier starts of a requeued job, too, which plain sacct hides. A job's own
# row
# has no memory, and with `-X` no CPU time either: both come from the steps.

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
    return parse_accounts(query_jobs(["sacct", *options], job_ids, problems, TIMES))


def parse_accounts(text: str) -> dict[str, list[Account]]:
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


# Below it, a step's start and end weigh more than what is measured.
SHORTEST_S: Final = 60.0
CPU_SHARE: Final = 0.02
CPU_S: Final = 1.0
MEMORY_SHARE: Final = 0.10
# A command's record is of the command alone; Slurm counts our process beside it, on every rank.
BESIDE_S: Final = 2.0
BESIDE_MIB: Final = 64.0


def disagreements(ranks: Sequence[RankRecord], slurm: Account) -> list[str] | None:
    """A sentence for each figure that differs; None where the two cannot be compared."""
    if not ranks or slurm.elapsed_s < SHORTEST_S or slurm.cpu_s is None:
        return None
    said = []
    cpu_s = sum(record.cpu.user_s + record.cpu.system_s for record in ranks)
    beside = sum(record.training is None for record in ranks)
    if abs(cpu_s - slurm.cpu_s) > max(CPU_SHARE * slurm.cpu_s, CPU_S) + BESIDE_S * beside:
        said.append(_differ("CPU seconds", cpu_s, slurm.cpu_s))
    ours, theirs = anonymous_mib(ranks), slurm.max_rss_mib
    allowed = MEMORY_SHARE * (theirs or 0.0) + (BESIDE_MIB if beside else 0.0)
    # More in the records is no difference: Slurm looks seldom, and misses short peaks.
    if ours is not None and theirs is not None and theirs - ours > allowed:
        said.append(_differ("MiB of memory", ours, theirs))
    return said


def _differ(what: str, ours: float, theirs: float) -> str:
    return f"{ours:,.1f} {what} in the records, {theirs:,.1f} in Slurm's accounting"


def anonymous_mib(ranks: Sequence[RankRecord]) -> float | None:
    """The largest rank's, as Slurm's MaxRSS: mapped files count in neither."""
    known = [record.memory.anonymous_peak_mib for record in ranks]
    return max((each for each in known if each is not None), default=None)
