"""Where a run stands: decided from what it left behind, by rules that touch nothing."""

from __future__ import annotations

import signal
from typing import Final

from hpcncf import snapshot
from hpcncf.exits import exit_phrase
from hpcncf.plan import Run
from hpcncf.records import End, RankRecord
from hpcncf.slurm.states import JobState
from hpcncf.state import by_slurm
from hpcncf.state.by_slurm import Verdict
from hpcncf.state.evidence import Attempt, Sent, complete, missing
from hpcncf.submissions import State

# What a launcher sends to the other ranks when one has failed: an effect, never the cause.
SENT_BY_US = {signal.SIGTERM, signal.SIGINT}
NOT_SENT: Final = "not submitted"


def decide(
    run: Run,
    attempt: Attempt | None,
    sent: Sent | None,
    by_hand: JobState | None = None,
    refused: str = "",
) -> Verdict:
    """The run's state and, where the state does not say all, why, and what helps.

    `by_hand`: of the Slurm job that took the last attempt, where no submission did. `refused`: why
    the last submission left it out.
    """
    state, reason = _stands(run, attempt, sent, by_hand)
    if state == "planned" and refused:
        reason = f"{NOT_SENT}: {refused}"
    return state, reason + _remedy(run, state)


def _stands(
    run: Run, attempt: Attempt | None, sent: Sent | None, by_hand: JobState | None
) -> Verdict:
    waiting = sent is not None and not sent.started
    if attempt and complete(run, attempt):
        again = waiting and sent is not None and sent.submission.again
        verdict = _waiting(run, sent) if again and sent else None
        return verdict if verdict and verdict[0] == "pending" else ("completed", "")
    at_work = attempt is not None and attempt.alive and not _over(run, attempt, sent)
    if sent and waiting and not at_work:  # somebody else may be at it: then ours passes it over
        return _waiting(run, sent)
    if attempt is None:
        return "planned", NOT_SENT
    verdict = _attempted(run, attempt, sent, by_hand)
    if sent and sent.cancelled_by and verdict[0] in ("stopped", "lost", "cancelled"):
        return "cancelled", f"by {sent.cancelled_by}, while it ran"
    if sent and sent.started and verdict[0] == "cancelled" and sent.submission.cluster == "local":
        return "stopped", "its local queue was ended while it ran"  # and nobody cancelled the run
    return verdict


def _remedy(run: Run, state: State) -> str:
    """Where more of what the run was given helps: what `hpcncf retry` is to be told."""
    key = {"timeout": "resources.timeout_min", "out_of_memory": "resources.mem_gb"}.get(state)
    if key is None or run.training is None:
        return ""
    then = "resumes at its last checkpoint" if run.training.checkpoint_every else "begins anew"
    return f"; retry -s {key}=N {then}"


def stale(run: Run, ranks: list[RankRecord], commit: str | None) -> str | None:
    """Why a finished run may not answer today's question; None where nothing speaks against it."""
    for warning in (warning for record in ranks for warning in record.warnings):
        if warning.startswith(snapshot.ELSEWHERE):
            return f"ran other code than was submitted: {warning}"
        if warning.startswith(snapshot.CHANGED):
            return f"ran other code than was submitted: {warning.removeprefix(snapshot.CHANGED)}"
    if run.training is None:  # of a command's own code its commit tells nothing
        return None
    for record in ranks:
        of_then = record.run.get("data_key")
        if of_then != run.data_key:
            return f"made from other data ({str(of_then)[:12]}, now {str(run.data_key)[:12]})"
        made_by = record.environment.get("commit")
        if commit and made_by and made_by != commit:
            return f"made by other code ({made_by[:7]}, now {commit[:7]})"
    return None


def _waiting(run: Run, sent: Sent) -> Verdict:
    if sent.cancelled_by:
        return "cancelled", f"by {sent.cancelled_by}, before it started"
    if sent.submission.error and sent.job is None:
        return "failed", f"{NOT_SENT}: {sent.submission.error.splitlines()[0]}"
    if sent.job is None:
        return _being_sent(run, sent)
    if sent.submission.cluster == "slurm":
        return by_slurm.not_begun(sent, sent.job)
    if sent.alive is None:
        host = sent.submission.host
        return "unknown", f"its queue is process {sent.job.id} on {host}: ask there"
    if sent.alive:
        return "pending", sent.ahead
    return "lost", f"its local queue (process {sent.job.id}) is gone; it never started"


def _being_sent(run: Run, sent: Sent) -> Verdict:
    if sent.alive is None:
        return "unknown", f"being submitted on {sent.submission.host}, or broken off there"
    if sent.alive:
        return "pending", "being submitted"
    if any(run.id in task for task in sent.submission.sending):
        return "unknown", "its submission broke off while Slurm was given it: `submit` finds out"
    return "lost", "its submission broke off before the cluster had it"


def _over(run: Run, attempt: Attempt, sent: Sent | None) -> bool:
    """Whether it has ended, as its launcher or a later submission says."""
    known = sent.submission.over.get(run.id, 0) if sent else 0
    return attempt.end is not None or attempt.number <= known


def _attempted(run: Run, attempt: Attempt, sent: Sent | None, by_hand: JobState | None) -> Verdict:
    state = sent.slurm if sent and sent.started else by_hand
    if attempt.end:
        # Of runs side by side that share a job's memory, Slurm tells the job, not which was killed.
        starved = state is not None and state.state == "out_of_memory"
        if state and starved and _killed(attempt.end.exit_codes):
            return state.state, state.reason
        return _ended(run, attempt, attempt.end)
    whole = len(attempt.ranks) == run.resources.world_size
    passed = sent is not None and sent.started and sent.passed
    alone = sent is None or sent.job is None or len(sent.job.runs) == 1
    verdict = by_slurm.begun(attempt, state, whole, passed, alone)
    if verdict:
        return verdict
    if whole or _failed_rank(attempt.ranks):
        return _from_records(attempt.ranks)
    if state and state.state == "failed":
        gone = f"; no record of {missing(run, attempt)}" if attempt.ranks else ""
        return "failed", f"{state.reason}{gone}"
    if state and state.state == "completed":
        return (
            "failed",
            f"{state.reason} with exit code 0, but no record of {missing(run, attempt)}",
        )
    if passed:
        return "lost", f"its task went on without it; no record of {missing(run, attempt)}"
    return "lost", f"its processes are gone; no record of {missing(run, attempt)}"


def _ended(run: Run, attempt: Attempt, end: End) -> Verdict:
    if end.reason == "timeout":
        return "timeout", f"stopped at its limit of {run.resources.timeout_min} min"
    if end.reason == "cancelled":
        return "cancelled", "while it ran"
    killed = _killed(end.exit_codes)
    if killed:
        return "failed", killed
    if any(record.outcome != "completed" for record in attempt.ranks):
        return _from_records(attempt.ranks)
    code = next(((rank, code) for rank, code in enumerate(end.exit_codes) if code), None)
    if code:
        return "failed", exit_phrase(*code)
    return "lost", f"every rank ended well, but there is no record of {missing(run, attempt)}"


def _killed(exit_codes: list[int | None]) -> str | None:
    """The first rank that a signal ended which we do not send ourselves: that is the cause."""
    for rank, code in enumerate(exit_codes):
        if code is not None and code < 0 and -code not in SENT_BY_US:
            return exit_phrase(rank, code)
    return None


def _failed_rank(ranks: list[RankRecord]) -> RankRecord | None:
    return next((record for record in ranks if record.outcome == "failed"), None)


def _from_records(ranks: list[RankRecord]) -> Verdict:
    failed = _failed_rank(ranks)
    if failed is None:
        told = next((record.error["message"] for record in ranks if record.error), "told to stop")
        return "stopped", f"{told}, before it was done"
    if failed.error is None:
        return "failed", exit_phrase(failed.rank, failed.exit_code or 0)
    message = failed.error.get("message", "").strip().splitlines()
    first = f": {message[0]}" if message else ""
    return "failed", f"rank {failed.rank}: {failed.error.get('type', 'error')}{first}"
