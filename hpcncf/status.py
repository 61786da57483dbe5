"""The state of every run: its plan, submissions, records, processes and Slurm, read together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hpcncf import claims, environment, judge, submissions
from hpcncf.attempts import last_attempt
from hpcncf.judge import Attempt, Sent
from hpcncf.local import machine
from hpcncf.paths import ResultPaths
from hpcncf.plan import Plan, Run
from hpcncf.records import Progress, RankRecord
from hpcncf.slurm import commands
from hpcncf.slurm.states import JobState
from hpcncf.submissions import State, Submission, Submitted, SubmittedJob

__all__ = ["RunState", "State", "states"]


@dataclass(frozen=True)
class RunState:
    """Where one run stands now, and why."""

    run: Run
    state: State
    reason: str
    """Empty where the state says all."""
    attempt: int | None
    ranks: list[RankRecord]
    """Of the last attempt."""
    progress: Progress | None
    problems: list[str]
    """Files of this run that could not be read, each with the reason."""
    stale: str | None = None
    """Why a finished run may not answer today's question: other code made it, or other data."""
    job: SubmittedJob | None = None
    """What the run was last submitted as."""


def states(paths: ResultPaths, plan: Plan) -> list[RunState]:
    """Every run of the plan, retired ones included, in the plan's order.

    What concerns no single run (a broken submission file, Slurm's silence) stands in the
    problems of the first.
    """
    submitted = submissions.read(paths)
    attempts = {run.id: last_attempt(paths.run(run.id)) for run in plan.runs}
    sent = {run.id: submitted.last(run.id) for run in plan.runs}
    problems = list(submitted.problems)
    asked = _slurm_jobs(plan.runs, attempts, sent)
    seen = Seen(
        submitted=submitted,
        slurm=commands.job_states(asked, problems),
        ahead=_ahead(paths, plan.runs, attempts, sent),
        commit=_commit() if _any_complete(plan.runs, attempts) else None,
    )
    found = [_state(run, attempts[run.id], sent[run.id], seen) for run in plan.runs]
    if problems and found:
        found[0] = replace(found[0], problems=problems + found[0].problems)
    return found


def _any_complete(runs: list[Run], attempts: Mapping[str, Attempt | None]) -> bool:
    last = ((run, attempts[run.id]) for run in runs)
    return any(attempt is not None and judge.complete(run, attempt) for run, attempt in last)


@cache
def _commit() -> str | None:
    return environment.commit(Path(__file__).parent).commit


@dataclass(frozen=True)
class Seen:
    """What is asked once for all runs."""

    submitted: Submitted
    slurm: dict[str, JobState]
    ahead: dict[str, str]
    commit: str | None


def _slurm_jobs(
    runs: list[Run],
    attempts: Mapping[str, Attempt | None],
    sent: Mapping[str, Submission | None],
) -> list[str]:
    """The jobs of those runs whose records do not tell the end."""
    ids: list[str] = []
    for run in runs:
        attempt, submission = attempts[run.id], sent[run.id]
        whole = attempt is not None and judge.complete(run, attempt)
        if submission is None or submission.cluster != "slurm" or (whole and not submission.again):
            continue
        job = submission.job_of(run.id)
        ids += [job.id] if job else []
    return ids


def _state(
    run: Run, attempt: Attempt | None, submission: Submission | None, seen: Seen
) -> RunState:
    sent = _sent(run, attempt, submission, seen) if submission else None
    state, reason = judge.decide(run, attempt, sent)
    ranks = attempt.ranks if attempt else []
    return RunState(
        run=run,
        state=state,
        reason=reason,
        attempt=attempt.number if attempt else None,
        ranks=ranks,
        progress=attempt.progress if attempt else None,
        problems=attempt.problems if attempt else [],
        stale=judge.stale(run, ranks, seen.commit) if state == "completed" else None,
        job=sent.job if sent else None,
    )


def _sent(run: Run, attempt: Attempt | None, submission: Submission, seen: Seen) -> Sent:
    job = submission.job_of(run.id)
    cancelled = seen.submitted.cancelled(run.id, submission.submitted_at)
    return Sent(
        submission=submission,
        job=job,
        started=_started(attempt, submission, job),
        alive=_alive(submission, job),
        ahead=seen.ahead.get(run.id, ""),
        cancelled_by=cancelled.user if cancelled else None,
        slurm=seen.slurm.get(job.id) if job else None,
    )


def _ahead(
    paths: ResultPaths,
    runs: list[Run],
    attempts: Mapping[str, Attempt | None],
    sent: Mapping[str, Submission | None],
) -> dict[str, str]:
    """Run -> what it waits for in a local queue: another queue's turn, or runs before it."""
    found, waiting = dict[str, str](), dict[str, int]()
    turn = machine.turn()
    for run in runs:
        submission = sent[run.id]
        if submission is None or submission.cluster != "local":
            continue
        job, since = submission.job_of(run.id), submission.submitted_at
        if _started(attempts[run.id], submission, job):
            continue
        before = waiting.get(since, 0)
        waiting[since] = before + 1
        found[run.id] = "next" if before == 0 else f"{before} before it"
        if turn and Path(turn.results) != paths.folder.resolve():
            found[run.id] = f"waits for the local queue of {Path(turn.results).name}"
    return found


def _started(attempt: Attempt | None, submission: Submission, job: SubmittedJob | None) -> bool:
    """Whether the last attempt is this submission's; clocks of two hosts may differ."""
    claim = attempt.claim if attempt else None
    if claim is None:
        return attempt is not None
    if claim.slurm_job_id is not None and job is not None:
        return claim.slurm_job_id == job.id
    if (submission.cluster == "local") != (claim.launched_by == "local"):
        return False  # somebody's torchrun meanwhile: the queue has yet to come to it
    return claim.claimed_at >= submission.submitted_at


def _alive(submission: Submission, job: SubmittedJob | None) -> bool | None:
    if submission.host != os.uname().nodename:
        return None
    if job is None:
        return claims.same_process(submission.submitter_pid, submission.submitter_started)
    if job.process_started is None:
        return None
    return claims.same_process(int(job.id), job.process_started)
