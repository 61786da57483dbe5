"""Cancel runs, and check whether a run was cancelled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from hpcncf.job.plan import Plan, Run
from hpcncf.local.processes import GRACE_S
from hpcncf.paths import ResultPaths
from hpcncf.records import submissions
from hpcncf.records.claims import current_claim, is_same_process
from hpcncf.records.results_folder import locked, writing
from hpcncf.records.schema import Claim, RecordError, read_record
from hpcncf.records.submissions import Submission, Submitted, read_submissions
from hpcncf.slurm import query
from hpcncf.state import status
from hpcncf.state.status import UNDER_WAY, RunState

# A shared file system is asked for the folder's time this often, and read when it has changed.
EVERY_S: Final = 5.0


class Word:
    """The cancellations of a results folder, as a rank of a task or a local queue hears of them."""

    def __init__(
        self, paths: ResultPaths, every_s: float = EVERY_S, job_id: str | None = None
    ) -> None:
        self._paths, self._every_s, self._job_id = paths, every_s, job_id
        self._looked_at, self._changed_ns = 0.0, -1
        self._submitted = Submitted([], [])
        self._own: Submission | None = None

    def against(self, run_id: str, since: str | None = None) -> bool:
        """Whether the run was cancelled of the submission of then, or this job's, or its last."""
        self._look()
        last = self._own or self._submitted.last(run_id)
        since = since or (last.submitted_at if last else None)
        return since is not None and self._submitted.cancelled(run_id, since) is not None

    def _look(self) -> None:
        now = time.monotonic()
        if self._looked_at and now - self._looked_at < self._every_s:
            return
        self._looked_at = now
        try:
            changed_ns = self._paths.submissions.stat().st_mtime_ns
        except OSError:  # no submission, or a file server that is away: none is known of
            return
        # Two changes within one tick of the file system's clock look like one: look once more.
        lately = time.time_ns() - changed_ns < 2e9 * max(self._every_s, 1.0)
        if changed_ns != self._changed_ns or lately:
            self._changed_ns, self._submitted = changed_ns, read_submissions(self._paths)
            self._own = self._submitted.holding(self._job_id)


POLL_S: Final = 0.2


def cancel(paths: ResultPaths, plan: Plan, runs: Sequence[Run]) -> list[RunState]:
    """Cancel those of the runs that are under way; returns how these stood before.

    Raises HpcncfError where Slurm refuses.
    """
    asked = {run.id for run in runs}
    # What is being submitted just now has its jobs when the lock is free.
    with writing(paths.folder), locked(paths):
        states = status.states(paths, plan)
        found = [state for state in states if state.run.id in asked and state.state in UNDER_WAY]
        if not found:
            return []
        word = submissions.cancel(paths, [state.run.id for state in found])
        try:
            query.cancel(_slurm_jobs(paths, states, found))
        except BaseException:  # Ctrl-C, too: what Slurm still has is not to be told as cancelled
            word.unlink()
            raise
    _end_local(paths, found)
    return found


def _slurm_jobs(
    paths: ResultPaths, states: Sequence[RunState], found: Sequence[RunState]
) -> list[str]:
    """The jobs that have nothing left to do; a task of several runs passes over a cancelled one.

    With the last of a submission goes the job that would report on it.
    """
    submitted, cancelled = submissions.read_submissions(paths), {state.run.id for state in found}
    left = {state.run.id for state in states if state.state in UNDER_WAY} - cancelled
    ids = dict.fromkeys(_started_by_hand(paths, found))
    for one in submitted.submissions:
        if one.cluster != "slurm" or not cancelled & set(one.runs):
            continue
        mine = {run_id for run_id in one.runs if submitted.last(run_id) is one}
        gone, wanted = mine & cancelled, mine & left
        idle = (job for job in one.jobs if wanted.isdisjoint(job.runs))
        ids |= {job.id: None for job in idle if not gone.isdisjoint(job.runs)}
        if one.report_job and not wanted:
            ids[one.report_job] = None
    return list(ids)


def _started_by_hand(paths: ResultPaths, found: Sequence[RunState]) -> list[str]:
    """Jobs that somebody gave to sbatch himself, one run each."""
    taken = [_claim(paths, state) for state in found if state.job is None]
    return [claim.slurm_job_id for claim in taken if claim and claim.slurm_job_id]


def _end_local(paths: ResultPaths, states: Sequence[RunState]) -> None:
    """The local queue reads the word left and ends its ranks; others are sent SIGTERM.

    A queue that does not answer is killed with all its processes.
    """
    for state in states:
        claim = _claim(paths, state)
        if claim and claim.launched_by not in ("local", "slurm") and _here(claim):
            os.kill(claim.pid, signal.SIGTERM)
    idle = [state for state in states if state.state == "running"]
    if _within(GRACE_S + 5, lambda: not any(_at_work(paths, state) for state in idle)):
        _let_queues_end(paths, states)
        return
    for state in idle:
        claim = _claim(paths, state)
        if claim and claim.launched_by == "local" and _here(claim):
            os.killpg(os.getpgid(claim.pid), signal.SIGKILL)


def _let_queues_end(paths: ResultPaths, states: Sequence[RunState]) -> None:
    """A queue whose every run is cancelled ends by itself; a moment later `status` agrees."""
    submitted = submissions.read_submissions(paths)
    asked = {state.run.id for state in states}
    queues = [one for one in submitted.submissions if one.cluster == "local"]
    ending = [one for one in queues if set(one.runs) <= asked]
    _within(5, lambda: not any(_queue_lives(one) for one in ending))


def _queue_lives(submission: Submission) -> bool:
    return submission.host == os.uname().nodename and any(
        is_same_process(int(job.id), job.process_started or 0.0) for job in submission.jobs
    )


def _at_work(paths: ResultPaths, state: RunState) -> bool:
    claim, run = _claim(paths, state), paths.run(state.run.id)
    if claim is None or not _here(claim):
        return False
    if claim.launched_by == "local":  # the queue lives on; it has let go when it has said how
        return not run.attempt(claim.attempt).end.exists()
    return current_claim(run) is not None


def _claim(paths: ResultPaths, state: RunState) -> Claim | None:
    if state.state != "running" or state.attempt is None:
        return None
    try:
        return read_record(paths.run(state.run.id).attempt(state.attempt).claim, Claim)
    except RecordError:
        return None


def _here(claim: Claim) -> bool:
    return claim.node == os.uname().nodename and is_same_process(claim.pid, claim.process_started)


def _within(seconds: float, done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
