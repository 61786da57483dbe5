"""Every state that Slurm gives a job, and our word for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpcncf.submissions import State

# The states and flags of slurm.schedmd.com/job_state_codes.html (Slurm 22.05 to 25.05) and of the
# manuals of squeue and sacct before it. One that is not here is `unknown`.
STATES: Final[dict[str, State]] = {
    "BOOT_FAIL": "node_failed",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "COMPLETING": "running",
    "CONFIGURING": "pending",
    "DEADLINE": "timeout",
    "EXPEDITING": "pending",
    "FAILED": "failed",
    "LAUNCH_FAILED": "failed",
    "NODE_FAIL": "node_failed",
    "OUT_OF_MEMORY": "out_of_memory",
    "PENDING": "pending",
    "POWER_UP_NODE": "pending",
    "PREEMPTED": "stopped",
    "RECONFIG_FAIL": "failed",
    "REQUEUED": "pending",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending",
    "RESIZING": "running",
    "RESV_DEL_HOLD": "pending",
    "REVOKED": "failed",
    "RUNNING": "running",
    "SIGNALING": "running",
    "SPECIAL_EXIT": "pending",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "TIMEOUT": "timeout",
    "UPDATE_DB": "running",
}

# Those in which the job is still Slurm's, or will be again.
NOT_OVER: Final = ("pending", "running")


@dataclass(frozen=True)
class JobState:
    """What Slurm says of one job or array element."""

    state: State
    word: str
    """Slurm's own word; empty where Slurm did not answer."""
    reason: str
    """Why it waits, or how it ended, in words."""
    node: str = ""
    """Slurm's list of its nodes: `cpu[03-05,9]`."""
    starts: str = ""
    """When Slurm expects a pending job to start, this machine's time: `2026-01-31T14:05:00`."""
    ended: str = ""
    """When it ended, likewise."""
    ended_ago_s: float | None = None
    """How long ago that was, when Slurm was asked."""
    elapsed_s: float | None = None
    restarts: int = 0
    """How often Slurm put it back into its queue."""
    remembered: bool = False
    """Whether this is what Slurm said some seconds ago."""


def state_of(word: str, job_id: str, detail: str = "") -> JobState:
    """Our word for Slurm's; sacct writes "CANCELLED by 1000" and "CANCELLED+" too."""
    plain = word.split()[0].rstrip("+") if word.split() else "nothing"
    state: State = STATES.get(plain, "unknown")
    if state == "pending" and plain == "PENDING":
        return JobState(state, plain, detail)
    said = f"Slurm job {job_id}: {word.rstrip('+') or plain}" + (f" ({detail})" if detail else "")
    return JobState(state, plain, "" if plain == "RUNNING" else said)
