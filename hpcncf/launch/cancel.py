"""Cancel runs that are under way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from hpcncf.job.plan import Plan, Run
from hpcncf.paths import ResultPaths
from hpcncf.records import submissions
from hpcncf.records.claims import current_claim, is_same_process
from hpcncf.records.plan_file import locked, writing
from hpcncf.records.schema import Claim, RecordError, read_record
from hpcncf.slurm import query
from hpcncf.state import status
from hpcncf.state.status import UNDER_WAY, RunState
from hpcncf.worker.processes import GRACE_S

POLL_S: Final = 0.2


def cancel(paths: ResultPaths, plan: Plan, runs: Sequence[Run]) -> list[RunState]:
    """Cancel the runs that are active; return the states that they had before.

    Raises HpcncfError if Slurm refuses.
    """
    wanted = {run.id for run in runs}
    # A submission in progress holds the lock until its jobs are recorded.
    with writing(paths.folder), locked(paths):
        states = status.states(paths, plan)
        active = [state for state in states if state.run.id in wanted and state.state in UNDER_WAY]
        if not active:
            return []
        cancellation = submissions.cancel(paths, [state.run.id for state in active])
        try:
            query.cancel(_slurm_jobs(paths, states, active))
        except BaseException:  # Ctrl-C, too: Slurm may still have the jobs
            cancellation.unlink()
            raise
    _end_local_processes(paths, active)
    return active


def _slurm_jobs(
    paths: ResultPaths, states: Sequence[RunState], cancelled_states: Sequence[RunState]
) -> list[str]:
    """Return ids of Slurm jobs whose runs are all cancelled, to be cancelled themselves.

    A task that has other runs skips a cancelled one.

    The report job of a submission is cancelled with its last run.
    """
    submitted = submissions.read_submissions(paths)
    cancelled = {state.run.id for state in cancelled_states}
    remaining = {state.run.id for state in states if state.state in UNDER_WAY} - cancelled
    claims = [_claim(paths, state) for state in cancelled_states if state.job is None]
    started_by_hand = [claim.slurm_job_id for claim in claims if claim and claim.slurm_job_id]
    ids = dict.fromkeys(started_by_hand)
    for submission in submitted.submissions:
        if submission.cluster != "slurm" or not cancelled & set(submission.runs):
            continue
        own = {run_id for run_id in submission.runs if submitted.last(run_id) is submission}
        for job in submission.jobs:
            if own & cancelled & set(job.runs) and not own & remaining & set(job.runs):
                ids[job.id] = None
        if submission.report_job and not own & remaining:
            ids[submission.report_job] = None
    return list(ids)


def _end_local_processes(paths: ResultPaths, states: Sequence[RunState]) -> None:
    """Send SIGTERM to local processes, except queues, which read the cancellation themselves.

    A queue that does not react is killed with all its processes.
    """
    for state in states:
        claim = _claim(paths, state)
        if claim and claim.launched_by not in ("local", "slurm") and _runs_here(claim):
            os.kill(claim.pid, signal.SIGTERM)
    running = [state for state in states if state.state == "running"]

    def is_working(state: RunState) -> bool:
        claim, run = _claim(paths, state), paths.run(state.run.id)
        if claim is None or not _runs_here(claim):
            return False
        if claim.launched_by == "local":  # its queue goes on, and writes the end of the attempt
            return not run.attempt(claim.attempt).end.exists()
        return current_claim(run) is not None

    if not _within(GRACE_S + 5, lambda: not any(map(is_working, running))):
        for state in running:
            claim = _claim(paths, state)
            if claim and claim.launched_by == "local" and _runs_here(claim):
                os.killpg(os.getpgid(claim.pid), signal.SIGKILL)
        return
    # A queue without runs ends by itself a moment later; then `status` agrees.
    cancelled = {state.run.id for state in states}
    ending = [
        (int(job.id), job.process_started or 0.0)
        for submission in submissions.read_submissions(paths).submissions
        if submission.cluster == "local" and submission.host == os.uname().nodename
        if set(submission.runs) <= cancelled
        for job in submission.jobs
    ]
    _within(5, lambda: not any(is_same_process(*process) for process in ending))


def _claim(paths: ResultPaths, state: RunState) -> Claim | None:
    if state.state != "running" or state.attempt is None:
        return None
    try:
        return read_record(paths.run(state.run.id).attempt(state.attempt).claim, Claim)
    except RecordError:
        return None


def _runs_here(claim: Claim) -> bool:
    return claim.node == os.uname().nodename and is_same_process(claim.pid, claim.process_started)


def _within(seconds: float, is_done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
