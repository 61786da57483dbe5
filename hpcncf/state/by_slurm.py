"""What Slurm's word on a job means for one of the runs that the job was to work at."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Final

from hpcncf.slurm.states import NOT_OVER, JobState
from hpcncf.state import logs
from hpcncf.state.evidence import ARRIVING_S, Attempt, Sent
from hpcncf.submissions import State, SubmittedJob

Verdict = tuple[State, str]

ARRIVING: Final = "its record may be on its way"


def not_begun(sent: Sent, job: SubmittedJob) -> Verdict:
    """Of a run that has no attempt by this job."""
    state = sent.slurm
    if state is None:
        return "unknown", _not_listed(job)
    if state.state == "running" and sent.before:
        where = f" on {state.node}" if state.node else ""
        return "pending", f"{sent.before} before it in its task (Slurm job {job.id}{where})"
    lately = state.ended_ago_s is not None and state.ended_ago_s < ARRIVING_S
    if state.state == "completed" and lately:
        return "running", f"{state.reason}: {ARRIVING}"
    if state.state in (*NOT_OVER, "unknown", "cancelled"):
        return state.state, state.reason
    if sent.before:
        return "lost", f"its task ended before its turn: {state.reason}"
    if state.state == "completed":
        return "failed", f"Slurm job {job.id} is {state.word} with exit code 0, but left no record"
    return state.state, state.reason


def _not_listed(job: SubmittedJob) -> str:
    return f"neither squeue nor sacct tells of Slurm job {job.id}"


def begun(
    attempt: Attempt, state: JobState | None, whole: bool, passed: bool, alone: bool
) -> Verdict | None:
    """Of a run with an attempt by this job; None where its records are to tell.

    `passed`: the job's task has gone on to a later run, so that the job's end is not this run's.
    `alone`: the job has no other run.
    """
    if passed:
        starved = state is not None and state.state == "out_of_memory" and not whole
        return _told(state) if state and starved else None
    if alone and whole and _sigkilled(attempt) and state and _had_the_job(state):
        return _ends(attempt)
    if state is None or (state.remembered and attempt.alive):
        return ("running", "") if attempt.alive and not whole else None
    if state.state == "pending":
        return "pending", requeued(attempt, state)
    if state.state in ("running", "unknown"):
        return _ending(attempt, state) if whole else _at_work(attempt, state)
    if state.state == "completed":
        return None if whole else _on_its_way(attempt, state)
    return None if state.state in ("failed", "lost") else _told(state)


def _told(state: JobState) -> Verdict:
    return state.state, state.reason


def _ending(attempt: Attempt, state: JobState) -> Verdict | None:
    """Every rank has stopped, but Slurm has the job yet: it may be about to be requeued."""
    if state.state != "running" or _failed(attempt):
        return None
    restart = attempt.claim.slurm_restart if attempt.claim else None
    if state.restarts > (restart or 0):
        return "running", f"starting again: {requeued(attempt, state)}"
    return _ends(attempt)


def _ends(attempt: Attempt) -> Verdict:
    why = next((record.error["message"] for record in attempt.ranks if record.error), "")
    return "running", f"ending: {why}" if why else "ending"


def _had_the_job(state: JobState) -> bool:
    """Whether Slurm had the job yet when it was asked, which may be some seconds ago."""
    return state.state == "running" or (state.remembered and state.state == "pending")


def _at_work(attempt: Attempt, state: JobState) -> Verdict | None:
    if attempt.alive:
        return "running", ""
    if state.state == "running":
        return "running", "but its first rank shows no sign of life"
    # Slurm did not answer, or with a word that we do not know: whether the job lives is unknown.
    return None if _failed(attempt) else _told(state)


def _on_its_way(attempt: Attempt, state: JobState) -> Verdict | None:
    """A record written lately need not have reached this machine."""
    if _failed(attempt):
        return None
    waits = attempt.alive if state.ended_ago_s is None else state.ended_ago_s < ARRIVING_S
    return ("running", f"{state.reason}: {ARRIVING}") if waits else None


def _failed(attempt: Attempt) -> bool:
    return any(record.outcome == "failed" for record in attempt.ranks)


def _sigkilled(attempt: Attempt) -> bool:
    """Whether SIGKILL ended a command: whether for want of memory, its job's end will tell."""
    return any(record.exit_code == -signal.SIGKILL for record in attempt.ranks)


def explained(state: JobState, attempt: Attempt | None, log: Path) -> JobState:
    """With what srun said of the rank that failed, where no record tells and Slurm only that the
    job did. A requeued job's log tells of earlier starts, too."""
    told = attempt is not None and _failed(attempt) and not _sigkilled(attempt)
    if state.state != "failed" or state.restarts or told:
        return state
    try:
        said = logs.srun_said(log)
    except OSError:  # somebody else's, most likely
        return state
    if not said:
        return state
    word: State = "out_of_memory" if said.endswith(logs.STARVED) else state.state
    return replace(state, state=word, reason=f"{state.reason}; srun: {said}")


def requeued(attempt: Attempt, state: JobState) -> str:
    """`requeued, 2nd time, stopped by ...; it had reached epoch 3/10, step 120`."""
    times = f", {_ordinal(state.restarts)} time" if state.restarts > 1 else ""
    why = next((f": {record.error['message']}" for record in attempt.ranks if record.error), "")
    return f"requeued{times}{why}{_reached(attempt)}"


def _reached(attempt: Attempt) -> str:
    now = attempt.progress
    if now is None or not now.epochs or now.phase == "startup":
        return ""
    return f"; it had reached epoch {min(now.epoch + 1, now.epochs)}/{now.epochs}, step {now.step}"


def _ordinal(number: int) -> str:
    teens = 10 <= number % 100 <= 20
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
