"""The states of all runs of a results folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from hpcncf.job.plan import Plan, Run
from hpcncf.paths import ResultPaths
from hpcncf.records.claims import is_same_process
from hpcncf.records.git import checkout
from hpcncf.records.schema import Progress, RankEnd, RankRecord
from hpcncf.records.submissions import State, Submission, Submitted, SubmittedJob, read_submissions
from hpcncf.slurm.query import job_states
from hpcncf.slurm.states import JobState
from hpcncf.state.decide import (
    Attempt,
    Sent,
    Turn,
    attempt_logs,
    decide,
    explain_failure,
    find_read_problem,
    find_stale_reason,
    is_complete,
    last_attempt,
    last_exception,
    script_log,
    with_srun_message,
)
from hpcncf.state.queue_position import is_begun, local_turns, task_turns

# `unknown`: Slurm does not answer, or its accounting is some seconds behind.
UNDER_WAY: Final = ("pending", "running", "unknown")


@dataclass(frozen=True)
class RunState:
    """Current state of one run, and the reason for it."""

    run: Run
    state: State
    reason: str
    """Empty if the state needs no explanation."""
    attempt: int | None
    ranks: Sequence[RankEnd]
    """Of the last attempt."""
    progress: Progress | None
    problems: list[str]
    """Files of this run that could not be read, each with the reason."""
    stale: str | None = None
    """Why a finished run may not answer today's question: other code made it, or other data."""
    job: SubmittedJob | None = None
    """What the run was last submitted as."""
    slurm: JobState | None = None
    """Slurm's report on the job that runs it, or will."""
    node: str = ""
    """Where it runs or ran: Slurm's list, else the first rank's."""
    begun_at: str | None = None
    """When the last submission's attempt was taken; None if it has taken none or is complete."""


AskSlurm = Callable[[Sequence[str], list[str]], dict[str, JobState]]


def states(
    paths: ResultPaths, plan: Plan, ask: AskSlurm = job_states, kind: type[RankEnd] = RankRecord
) -> list[RunState]:
    """Determine the states of all runs of the plan, in its order, with retired runs included.

    `ask` asks Slurm. `kind`: RankEnd reads no more of the ranks' records than states need. What
    concerns no single run (a broken submission file, Slurm's silence) stands in the problems of
    the first.
    """
    submitted = read_submissions(paths)
    attempts = {run.id: last_attempt(paths.run(run.id), kind) for run in plan.runs}
    sent = {run.id: submitted.last(run.id) for run in plan.runs}
    problems = list(submitted.problems)
    pairs = [(run, attempts[run.id]) for run in plan.runs]
    complete_runs = {run.id for run, attempt in pairs if attempt and is_complete(run, attempt)}
    asked = _slurm_jobs(plan.runs, attempts, sent, complete_runs)
    seen = Observations(
        paths=paths,
        submitted=submitted,
        slurm=ask(asked, problems),
        waiting=local_turns(paths, plan.runs, attempts, sent)
        | task_turns(plan.runs, attempts, submitted, complete_runs),
        commit=_commit() if complete_runs else None,
        is_same_process=cache(is_same_process),
    )
    closed = {
        run.id: why
        for run in plan.runs
        if attempts[run.id] is None and (why := find_read_problem(paths.run(run.id)))
    }
    found = [
        RunState(run, "unknown", "its folder cannot be read", None, [], None, [closed[run.id]])
        if run.id in closed
        else _state(run, attempts[run.id], sent[run.id], seen)
        for run in plan.runs
    ]
    if problems and found:
        found[0] = replace(found[0], problems=problems + found[0].problems)
    return found


@cache
def _commit() -> str | None:
    return checkout(Path(__file__).parent).commit


@dataclass(frozen=True)
class Observations:
    """Observations that are made once for all runs."""

    paths: ResultPaths
    submitted: Submitted
    slurm: dict[str, JobState]
    waiting: dict[str, Turn]
    commit: str | None
    is_same_process: Callable[[int, float], bool]


def _slurm_jobs(
    runs: list[Run],
    attempts: Mapping[str, Attempt | None],
    sent: Mapping[str, Submission | None],
    complete: set[str],
) -> list[str]:
    """Return ids of Slurm jobs of runs whose records do not show the end.

    Jobs that were started by hand are included.
    """
    ids: dict[str, None] = {}
    for run in runs:
        attempt, submission = attempts[run.id], sent[run.id]
        if submission and submission.cluster == "slurm":
            job = submission.job_of(run.id)
            if job and (run.id not in complete or submission.again):
                ids[job.id] = None
        if run.id not in complete and (by := _slurm_job(attempt)):
            ids[by] = None
    return list(ids)


def _slurm_job(attempt: Attempt | None) -> str | None:
    return attempt.claim.slurm_job_id if attempt and attempt.claim else None


def _state(
    run: Run, attempt: Attempt | None, submission: Submission | None, seen: Observations
) -> RunState:
    sent = _build_sent(run, attempt, submission, seen) if submission else None
    by_hand = seen.slurm.get(_slurm_job(attempt) or "") if seen.slurm else None
    verdict = decide(run, attempt, sent, by_hand, seen.submitted.refused.get(run.id, ""))
    ranks = attempt.ranks if attempt else []
    if verdict[0] == "failed":
        verdict = explain_failure(verdict, _find_exception(run, attempt, seen.paths))
    state, reason = verdict
    slurm = sent.slurm if sent and sent.slurm else by_hand
    is_ours = attempt and not attempt.completed and (sent is None or sent.started)
    claim = attempt.claim if attempt and is_ours else None
    return RunState(
        run=run,
        state=state,
        reason=reason,
        attempt=attempt.number if attempt else None,
        ranks=ranks,
        progress=attempt.progress if attempt else None,
        problems=attempt.problems if attempt else [],
        stale=find_stale_reason(run, ranks, seen.commit) if state == "completed" else None,
        job=sent.job if sent else None,
        slurm=slurm,
        node=_find_node(attempt, slurm, state),
        begun_at=claim.claimed_at if claim else None,
    )


def _find_exception(run: Run, attempt: Attempt | None, paths: ResultPaths) -> str:
    """Find the exception in a command's log; empty for the training that hpcncf runs itself.

    A training has its exception in its record.
    """
    if attempt is None or run.training is not None:
        return ""
    failed = attempt.failed
    files = paths.run(run.id).attempt(attempt.number)
    job_id = failed.slurm_job_id if failed else _slurm_job(attempt)
    return last_exception(attempt_logs(paths, files, job_id, failed.rank if failed else 0))


def _find_node(attempt: Attempt | None, slurm: JobState | None, state: State) -> str:
    if state in ("planned", "pending"):
        return ""
    if slurm and slurm.node:
        return slurm.node
    if state == "completed" and attempt and attempt.ranks:
        return attempt.ranks[0].node
    return attempt.claim.node if attempt and attempt.claim else ""


def _build_sent(
    run: Run, attempt: Attempt | None, submission: Submission, seen: Observations
) -> Sent:
    job = submission.job_of(run.id)
    cancelled = seen.submitted.cancelled(run.id, submission.submitted_at)
    slurm = seen.slurm.get(job.id) if job and submission.cluster == "slurm" else None
    if slurm and job:
        log = script_log(seen.paths, submission.user, job.id)
        slurm = with_srun_message(slurm, attempt, log)
    return Sent(
        submission=submission,
        job=job,
        started=is_begun(attempt, submission, job),
        alive=_is_queue_alive(submission, job, seen.is_same_process),
        turn=seen.waiting.get(run.id, Turn()),
        cancelled_by=cancelled.user if cancelled else None,
        slurm=slurm,
    )


def _is_queue_alive(
    submission: Submission, job: SubmittedJob | None, is_same: Callable[[int, float], bool]
) -> bool | None:
    if submission.host != os.uname().nodename:
        return None
    if job is None:
        return is_same(submission.submitter_pid, submission.submitter_started)
    if job.process_started is None:
        return None
    return is_same(int(job.id), job.process_started)
