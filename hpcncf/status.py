"""The state of every run: its plan, submissions, records, processes and Slurm, read together."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcncf import claims, judge, records, submissions
from hpcncf.judge import Attempt, Sent
from hpcncf.plan import Plan, Run
from hpcncf.records import (
    AttemptPaths,
    Claim,
    End,
    Progress,
    R,
    RankRecord,
    RecordError,
    ResultPaths,
)
from hpcncf.slurm import JobState
from hpcncf.submissions import State, Submission, Submitted, SubmittedJob

__all__ = ["RunState", "State", "states"]

# Between making an attempt's folder and writing its claim lies an instant; on NFS, some seconds.
CLAIMING_S: Final = 30.0


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
    """Every run of the plan, retired ones included, in the plan's order."""
    submitted = submissions.read(paths)
    attempts = {run.id: last_attempt(paths, run) for run in plan.runs}
    slurm_states: dict[str, JobState] = {}
    return [_state(run, attempts[run.id], submitted, slurm_states) for run in plan.runs]


def _state(
    run: Run,
    attempt: Attempt | None,
    submitted: Submitted,
    slurm_states: Mapping[str, JobState],
) -> RunState:
    sent = _sent(run, attempt, submitted, slurm_states)
    state, reason = judge.decide(run, attempt, sent)
    return RunState(
        run=run,
        state=state,
        reason=reason,
        attempt=attempt.number if attempt else None,
        ranks=attempt.ranks if attempt else [],
        progress=attempt.progress if attempt else None,
        problems=attempt.problems if attempt else [],
        job=sent.job if sent else None,
    )


def last_attempt(paths: ResultPaths, run: Run) -> Attempt | None:
    attempts = paths.run(run.id).attempts()
    if not attempts:
        return None
    files, problems = attempts[-1], list[str]()
    claim = _read(files.claim, Claim, problems)
    ranks = [_read(path, RankRecord, problems) for path in files.ranks()]
    return Attempt(
        number=files.number,
        claim=claim,
        ranks=[record for record in ranks if record],
        progress=_read(files.progress, Progress, problems),
        end=_read(files.end, End, problems),
        alive=claims.alive(claim, files) if claim else _just_made(files),
        problems=problems,
    )


def _read(path: Path, kind: type[R], problems: list[str]) -> R | None:
    try:
        return records.read(path, kind)
    except RecordError as error:
        if path.exists():
            problems.append(str(error))
        return None


def _just_made(attempt: AttemptPaths) -> bool:
    return time.time() - attempt.folder.stat().st_mtime < CLAIMING_S


def _sent(
    run: Run,
    attempt: Attempt | None,
    submitted: Submitted,
    slurm_states: Mapping[str, JobState],
) -> Sent | None:
    submission = submitted.last(run.id)
    if submission is None:
        return None
    job = submission.job_of(run.id)
    cancelled = submitted.cancelled(run.id, submission.submitted_at)
    return Sent(
        submission=submission,
        job=job,
        started=_started(attempt, submission, job),
        alive=_alive(submission, job),
        cancelled_by=cancelled.user if cancelled else None,
        slurm=slurm_states.get(job.id) if job else None,
    )


def _started(attempt: Attempt | None, submission: Submission, job: SubmittedJob | None) -> bool:
    """Whether the last attempt is this submission's; clocks of two hosts may differ."""
    claim = attempt.claim if attempt else None
    if claim is None:
        return attempt is not None
    if claim.slurm_job_id is not None and job is not None:
        return claim.slurm_job_id == job.id
    return claim.claimed_at >= submission.submitted_at


def _alive(submission: Submission, job: SubmittedJob | None) -> bool | None:
    if submission.host != os.uname().nodename:
        return None
    if job is None:
        return claims.same_process(submission.submitter_pid, submission.submitter_started)
    if job.process_started is None:
        return None
    return claims.same_process(int(job.id), job.process_started)
