"""Slurm's job states, and ours for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpcncf.records.submissions import State

# States and flags of slurm.schedmd.com/job_state_codes.html (Slurm 22.05 to 25.05) and of the older
# manuals of squeue and sacct. Any other is `unknown`.
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


# The job is queued or running, or will be again.
NOT_OVER: Final = ("pending", "running")


@dataclass(frozen=True)
class JobState:
    """State of one job or array element, as Slurm reported it."""

    state: State
    word: str
    """Slurm's own word; empty if Slurm did not answer."""
    reason: str
    """Why it waits, or how it ended, in words."""
    node: str = ""
    """Slurm's list of its nodes: `cpu[03-05,9]`."""
    starts: str = ""
    """Expected start of a pending job in this machine's time: `2026-01-31T14:05:00`."""
    ended: str = ""
    """End, in the same form."""
    ended_ago_s: float | None = None
    """Seconds since its end, when Slurm was asked."""
    elapsed_s: float | None = None
    restarts: int = 0
    """How often Slurm requeued it."""
    remembered: bool = False
    """Whether this is an answer of some seconds ago."""


def state_of(word: str, job_id: str, detail: str = "") -> JobState:
    """Convert Slurm's word for a job state, such as `CANCELLED by 1000`, to a JobState."""
    plain = word.split()[0].rstrip("+") if word.split() else "nothing"
    state: State = STATES.get(plain, "unknown")
    if plain in ("PENDING", "RUNNING"):
        return JobState(state, plain, detail if plain == "PENDING" else "")
    end = f" ({detail})" if detail else ""
    return JobState(state, plain, f"Slurm job {job_id}: {word.rstrip('+') or plain}{end}")
