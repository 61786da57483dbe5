"""Slurm's accounting of a run's steps, compared with the rank records."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from hpcncf.records.schema import RankRecord
from hpcncf.slurm.query import parse_duration, query_jobs

# `sacct -D` also lists earlier starts of a requeued job. The row of a job has no memory, and with
# `-X` no CPU time either: both are read from the steps.
FIELDS: Final = "JobID,State,Start,End,ElapsedRaw,TotalCPU,MaxRSS"
# Seconds since 1970: sacct's usual times have no zone.
TIMES: Final = {"SLURM_TIME_FORMAT": "%s"}
# A step may be recorded some seconds before its ranks start.
SLACK_S: Final = 15.0
_MIB: Final = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}


@dataclass(frozen=True)
class Account:
    """Accounting figures of one start of one job step."""

    FIGURES: ClassVar = ("state", "elapsed_s", "cpu_s", "max_rss_mib")

    state: str
    """As Slurm spells it."""
    started: float
    """Seconds since 1970."""
    ended: float | None
    """None while the step runs."""
    elapsed_s: float
    cpu_s: float | None
    """User and system time of all tasks."""
    max_rss_mib: float | None
    """Largest resident memory of a task, sampled; with cgroups without mapped files."""

    def figures(self) -> dict[str, str | float | None]:
        return {name: getattr(self, name) for name in self.FIGURES}


def accounts(job_ids: Sequence[str], problems: list[str]) -> dict[str, list[Account]]:
    """Query sacct for all starts of the jobs' steps: job id -> accounts.

    Errors are added to `problems`.
    """
    options = ("--duplicates", "--noheader", "--parsable2", f"--format={FIELDS}")
    return parse_accounts(query_jobs(["sacct", *options], job_ids, problems, TIMES))


def parse_accounts(text: str) -> dict[str, list[Account]]:
    """Parse sacct's output into accounts of the numbered steps, which srun started."""
    accounts: dict[str, list[Account]] = defaultdict(list)
    for line in text.splitlines():
        cells = line.split("|")
        job_id, _, step = cells[0].partition(".")
        if len(cells) != len(FIELDS.split(",")) or not step.isdecimal() or not cells[2].isdecimal():
            continue
        _, state, started, ended, elapsed, cpu, rss = cells
        accounts[job_id].append(
            Account(
                state=state.split()[0].rstrip("+") if state else "",
                started=float(started),
                ended=float(ended) if ended.isdecimal() else None,
                elapsed_s=float(elapsed) if elapsed.isdecimal() else 0.0,
                cpu_s=parse_duration(cpu),
                max_rss_mib=mebibytes(rss),
            )
        )
    return dict(accounts)


def step_at(steps: Sequence[Account], moment: float) -> Account | None:
    """Find the step in which a process started at this moment runs; None if there is none."""
    running = [
        step
        for step in steps
        if step.started - SLACK_S <= moment and (step.ended is None or moment <= step.ended)
    ]
    return max(running, key=lambda step: step.started, default=None)


def mebibytes(text: str) -> float | None:
    """Convert sacct's memory, such as `153364K`, to MiB; None for 0.

    sacct prints 0 for steps that it never sampled.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    amount = float(match[1]) * _MIB[match[2]] if match else 0.0
    return amount or None


# In a shorter step, its start and end weigh more than the measured part.
SHORTEST_S: Final = 60.0
CPU_SHARE: Final = 0.02
CPU_S: Final = 1.0
MEMORY_SHARE: Final = 0.10
# The record of a command excludes the hpcncf process of each rank, which Slurm counts.
BESIDE_S: Final = 2.0
BESIDE_MIB: Final = 64.0


def disagreements(ranks: Sequence[RankRecord], slurm: Account) -> list[str] | None:
    """Describe figures of sacct that differ from the records; None if not comparable."""
    if not ranks or slurm.elapsed_s < SHORTEST_S or slurm.cpu_s is None:
        return None
    differences = []
    cpu_s = sum(record.cpu.user_s + record.cpu.system_s for record in ranks)
    commands = sum(record.training is None for record in ranks)
    if abs(cpu_s - slurm.cpu_s) > max(CPU_SHARE * slurm.cpu_s, CPU_S) + BESIDE_S * commands:
        differences.append(("CPU seconds", cpu_s, slurm.cpu_s))
    # Of the largest rank; neither figure counts mapped files.
    peaks = [record.memory.anonymous_peak_mib for record in ranks]
    ours = max((peak for peak in peaks if peak is not None), default=None)
    theirs = slurm.max_rss_mib
    allowed = MEMORY_SHARE * (theirs or 0.0) + (BESIDE_MIB if commands else 0.0)
    # The records may show more: Slurm samples rarely and misses short peaks.
    if ours is not None and theirs is not None and theirs - ours > allowed:
        differences.append(("MiB of memory", ours, theirs))
    return [
        f"{recorded:,.1f} {unit} in the records, {accounted:,.1f} in Slurm's accounting"
        for unit, recorded, accounted in differences
    ]
