"""What Slurm says of its jobs: its state words and ours, and the text of squeue and sacct."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hpcncf.submissions import State

# Every state word of squeue and sacct (Slurm 22.05 to 25.05). One that is not here is `unknown`.
STATES: Final[dict[str, State]] = {
    "BOOT_FAIL": "node_failed",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "COMPLETING": "running",
    "CONFIGURING": "pending",
    "DEADLINE": "timeout",
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
}

SQUEUE_FORMAT: Final = "%i|%T|%r"
SACCT_FIELDS: Final = "JobID,State,ExitCode"


@dataclass(frozen=True)
class JobState:
    """What Slurm says of one job or array element."""

    state: State
    word: str
    """Slurm's own word."""
    reason: str


def state_of(word: str, job_id: str, detail: str = "") -> JobState:
    """Our word for Slurm's; sacct writes "CANCELLED by 1000" and "CANCELLED+" too."""
    plain = word.split()[0].rstrip("+") if word.split() else "nothing"
    state: State = STATES.get(plain, "unknown")
    said = f"Slurm job {job_id}: {plain}" + (f" ({detail})" if detail else "")
    quiet = state == "running" and plain == "RUNNING"
    return JobState(state, plain, "" if quiet else said)


def read_squeue(text: str) -> dict[str, JobState]:
    """`squeue --array --noheader --format=SQUEUE_FORMAT`: job id -> state."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return {
        job_id.strip(): state_of(word, job_id.strip(), "" if reason == "None" else reason.strip())
        for job_id, word, reason in rows
    }


def read_sacct(text: str) -> dict[str, JobState]:
    """`sacct --noheader --parsable2 --format=SACCT_FIELDS`: job id -> state.

    A step that ran out of memory leaves its job FAILED, or even COMPLETED: the steps tell.
    """
    found: dict[str, JobState] = {}
    starved: set[str] = set()
    for job_id, word, exit_code in _sacct_rows(text):
        if "." not in job_id:
            found[job_id] = state_of(word, job_id, _exit_detail(word, exit_code))
        elif word.startswith("OUT_OF_ME"):
            starved.add(job_id.split(".")[0])
    for job_id in starved & set(found):
        found[job_id] = state_of("OUT_OF_MEMORY", job_id)
    return found


def _sacct_rows(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) == 3 and cells[0]:
            yield cells[0], cells[1], cells[2]


def _exit_detail(word: str, exit_code: str) -> str:
    """sacct's `code:signal` where it tells more than the state."""
    code, _, by_signal = exit_code.partition(":")
    if not word.startswith("FAILED"):
        return ""
    return f"signal {by_signal}" if by_signal not in ("", "0") else f"exit code {code}"
