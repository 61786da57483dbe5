"""Decide whether Slurm is asked to run a stopped job again, and ask it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hpcncf.launcher.environment import launched_by, slurm_job_id
from hpcncf.slurm import query

# Set for a run that is one of several in a task, which puts itself back when the run has ended.
BY_TASK: Final = "HPCNCF_REQUEUED_BY_TASK"


NOT_PUT_BACK: Final = "; not put back into the queue: "


@dataclass(frozen=True)
class RequeueDecision:
    """Whether a job that has to stop is put back into the queue."""

    job_id: str | None
    """The job to put back; None: it is not put back."""
    description: str
    """The same in words, behind the reason for which it stopped."""


def in_slurm_job(env: Mapping[str, str]) -> bool:
    return "SLURM_JOB_ID" in env and launched_by(env) != "local"


def decide_requeue(
    signum: int, allowed: int, env: Mapping[str, str] = os.environ
) -> RequeueDecision:
    """Decide whether a job that got this signal is requeued, at most `allowed` times in all.

    Slurm sends SIGTERM to a cancelled job, which has to end. A preempted job gets the same signal,
    or its own if Slurm is set to send that one, and is put back.
    """
    job_id = slurm_job_id(env)
    if job_id is None or not in_slurm_job(env):
        return RequeueDecision(None, "")
    if signum != signal.SIGUSR2 and not (signum == signal.SIGTERM and preempted(job_id)):
        return RequeueDecision(None, "")
    starts = restart(env) or 0
    if starts >= allowed:
        so_far = f"was put back {starts} times already, " if starts else ""
        return RequeueDecision(None, f"{NOT_PUT_BACK}{so_far}resources.requeues {allowed}")
    if shutil.which("scontrol") is None:
        return RequeueDecision(None, f"{NOT_PUT_BACK}there is no scontrol on this node")
    description = f"; put back into the queue, time {starts + 1} of {allowed}"
    return RequeueDecision(None if BY_TASK in env else job_id, description)


def restart(env: Mapping[str, str] = os.environ) -> int | None:
    """Return how often Slurm has restarted this job: 0 at its first start, None outside a job."""
    return int(env.get("SLURM_RESTART_COUNT", "0")) if "SLURM_JOB_ID" in env else None


def preempted(job_id: str) -> bool:
    """Return whether Slurm is preempting this running job in favour of another."""
    said = query.run_query(["scontrol", "show", "job", "--oneliner", job_id], [])
    return "JobState=RUNNING" in said and re.search(r"\bPreemptTime=\d", said) is not None


def requeue_job(job_id: str) -> str | None:
    """Put the job back into Slurm's queue; return None, or a description of the refusal."""
    problems: list[str] = []
    query.run_query(["scontrol", "requeue", job_id], problems)
    return f"{NOT_PUT_BACK}{problems[0]}" if problems else None


def stopped_task(signum: int, allowed: int) -> int:
    """Requeue a task whose runs a signal stopped, if allowed; return its exit code.

    After a requeue it goes on with the runs that are not complete.
    """
    decision, name = decide_requeue(signum, allowed), signal.Signals(signum).name
    refusal = requeue_job(decision.job_id) if decision.job_id else None
    fate = refusal or decision.description
    sys.stderr.write(f"hpcncf: this task's runs were stopped by {name}{fate}\n")
    return 128 + signum
