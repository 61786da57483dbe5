"""A run that Slurm stops is put back into Slurm's queue by its first rank, so often and no more."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from hpcncf.rank import launcher
from hpcncf.slurm import commands

# Set for a run that is one of several in a task, which puts itself back when the run has ended.
BY_TASK = "HPCNCF_REQUEUED_BY_TASK"


@dataclass(frozen=True)
class Decision:
    """What becomes of a job that was told to stop."""

    job_id: str | None
    """The job to put back; None: it is not put back."""
    told: str
    """The same in words, behind the reason for which it stopped."""


def graceful(env: Mapping[str, str] = os.environ) -> frozenset[int]:
    """The signals at which a run stops where all its ranks agree to, with a checkpoint.

    Outside of Slurm SIGTERM means at once: whoever sends it waits in front of a terminal.
    """
    return frozenset({signal.SIGUSR2, signal.SIGTERM} if _in_slurm(env) else {signal.SIGUSR2})


def _in_slurm(env: Mapping[str, str]) -> bool:
    return "SLURM_JOB_ID" in env and launcher.launched_by(env) not in ("local", "debug")


def decide(signum: int, allowed: int, env: Mapping[str, str] = os.environ) -> Decision:
    """`allowed`: how often the job may be put back in all.

    Slurm sends SIGTERM to a job that is cancelled, which is to end, and where it was not told to
    send the job's own signal also to one that is preempted: that one is put back.
    """
    job_id = launcher.slurm_job_id(env)
    if job_id is None or not _in_slurm(env):
        return Decision(None, "")
    if signum != signal.SIGUSR2 and not (signum == signal.SIGTERM and preempted(job_id)):
        return Decision(None, "")
    starts = restart(env) or 0
    if starts >= allowed:
        so_far = f"was put back {starts} times already, " if starts else ""
        return Decision(
            None, f"; not put back into the queue: {so_far}resources.requeues {allowed}"
        )
    if shutil.which("scontrol") is None:
        return Decision(None, "; not put back into the queue: there is no scontrol on this node")
    told = f"; put back into the queue, time {starts + 1} of {allowed}"
    return Decision(None if BY_TASK in env else job_id, told)


def restart(env: Mapping[str, str] = os.environ) -> int | None:
    """Which start of its job of Slurm's this is, 0 the first; None outside of one."""
    return int(env.get("SLURM_RESTART_COUNT", "0")) if "SLURM_JOB_ID" in env else None


def preempted(job_id: str) -> bool:
    """Whether Slurm stops this running job for another one's sake."""
    said = commands.said(["scontrol", "show", "job", "--oneliner", job_id], [])
    return "JobState=RUNNING" in said and re.search(r"\bPreemptTime=\d", said) is not None


def put_back(job_id: str) -> str | None:
    """None, or what Slurm said against it."""
    problems: list[str] = []
    commands.said(["scontrol", "requeue", job_id], problems)
    return problems[0] if problems else None


def stopped_task(signum: int, allowed: int) -> int:
    """The exit code of a task of several runs that were stopped: it is put back, where it may be,
    to go on with those that are not complete."""
    decision = decide(signum, allowed)
    told = decision.told
    if decision.job_id is not None:
        refused = put_back(decision.job_id)
        told = f"; not put back into the queue: {refused}" if refused else told
    name = signal.Signals(signum).name
    sys.stderr.write(f"hpcncf: this task's runs were stopped by {name}{told}\n")
    return 128 + signum
