"""Position of a pending run in its queue or task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcncf.job import packs
from hpcncf.job.plan import Run
from hpcncf.paths import ResultPaths
from hpcncf.records.active_queue import read_active_queue
from hpcncf.records.submissions import Submission, Submitted, SubmittedJob
from hpcncf.state.decide import Attempt, Turn


def local_turns(
    paths: ResultPaths,
    runs: Sequence[Run],
    attempts: Mapping[str, Attempt | None],
    sent: Mapping[str, Submission | None],
) -> dict[str, Turn]:
    """Return positions of runs in local queues: run id -> position.

    Runs wait for another queue, or for packs before them.
    """
    active, elsewhere = read_active_queue(), ""
    if active and Path(active.results) != paths.folder.resolve():
        elsewhere = f"waits for the local queue of {Path(active.results).name}"
    planned = {run.id: run for run in runs}
    queues = {one.submitted_at: one for one in sent.values() if one and one.cluster == "local"}
    found: dict[str, Turn] = {}
    for submission in queues.values():
        before = 0
        for pack in packs.pack_runs([planned[each] for each in submission.runs if each in planned]):
            has_begun = [
                is_begun(attempts.get(run.id), submission, submission.job_of(run.id))
                for run in pack
            ]
            waiting = [
                run.id
                for run, has in zip(pack, has_begun, strict=True)
                if sent[run.id] is submission and not has
            ]
            ahead = elsewhere or (f"behind {before}" if before else "next")
            found |= {run_id: Turn(ahead=ahead) for run_id in waiting}
            before += bool(waiting) and not any(has_begun)
    return found


def is_begun(attempt: Attempt | None, submission: Submission, job: SubmittedJob | None) -> bool:
    """Return whether this submission has begun the run, or has nothing to do for it."""
    if attempt and not submission.again and attempt.completed:
        return True
    return is_of_submission(attempt, submission, job)


def task_turns(
    runs: Sequence[Run],
    attempts: Mapping[str, Attempt | None],
    submitted: Submitted,
    complete: set[str],
) -> dict[str, Turn]:
    """Return positions of runs that share a Slurm task with others: run id -> position."""
    sizes = {run.id: run.resources.side_by_side for run in runs}
    found: dict[str, Turn] = {}
    for submission in submitted.submissions:
        if submission.cluster == "slurm":
            for job in submission.jobs:
                if len(job.runs) > 1:
                    size = next((sizes[run_id] for run_id in job.runs if run_id in sizes), 1)
                    done = complete & set(sizes)
                    found |= _turns_in_task(submission, job, attempts, submitted, done, size)
    return found


def _turns_in_task(
    submission: Submission,
    job: SubmittedJob,
    attempts: Mapping[str, Attempt | None],
    submitted: Submitted,
    complete: set[str],
    size: int,
) -> dict[str, Turn]:
    """Return positions of runs within one Slurm task, which starts `size` runs side by side."""
    together = packs.batched(job.runs, size)
    ours = {
        run_id for run_id in job.runs if is_of_submission(attempts.get(run_id), submission, job)
    }
    latest = max((number for number, pack in enumerate(together) if ours & {*pack}), default=-1)
    turns, before = dict[str, Turn](), 0
    for number, pack in enumerate(together):
        passed, undone = number < latest, False
        for run_id in pack:
            has = run_id in ours
            turns[run_id] = Turn(before=before, passed=has and passed)
            skipped = submitted.cancelled(run_id, submission.submitted_at) and not has
            over = passed or run_id in complete or skipped
            last = attempts.get(run_id)
            has_ended = has and last is not None and bool(last.ranks)
            undone |= not (over or has_ended)
        before += undone
    return turns


def is_of_submission(
    attempt: Attempt | None, submission: Submission, job: SubmittedJob | None
) -> bool:
    """Return whether the run's last attempt was made by this submission.

    Times are not compared, because hosts' clocks differ.
    """
    if attempt is None:
        return False
    claim = attempt.claim
    if claim is None:
        return True
    if claim.slurm_job_id is not None and job is not None:
        return claim.slurm_job_id == job.id
    if (submission.cluster == "local") != (claim.launched_by == "local"):
        return False  # somebody's torchrun meanwhile: the queue has yet to come to it
    return attempt.number > submission.over.get(claim.run_id, 0)
