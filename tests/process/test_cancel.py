"""Cancellations: cancelled jobs are reported as cancelled, and ranks notice them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from conftest import FakeSlurm

from hpcncf.errors import HpcncfError
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Plan
from hpcncf.job.spec import JobSpec
from hpcncf.launch.cancel import cancel
from hpcncf.launch.submit import submit
from hpcncf.paths import ResultPaths
from hpcncf.records import submissions
from hpcncf.records.plan_file import locked, record_plan
from hpcncf.records.schema import read_record, write_record
from hpcncf.records.submissions import Submission, SubmittedJob, begin, read_submissions
from hpcncf.state.cancel_check import CancelCheck

JobFile = Callable[[str], Path]
SWEEP = "grid: {training.seed: [1, 2, 3]}\n"


def planned(job_file: JobFile) -> tuple[ResultPaths, JobSpec, Plan]:
    path = job_file(SWEEP)
    job, paths = load_job(path), ResultPaths(path.parent / "results/tiny")
    return paths, job, record_plan(paths, job, build_plan(job, path))


def test_jobs_that_slurm_did_not_cancel_are_not_reported_as_cancelled(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    """Otherwise `retry` would submit queued runs once more."""
    paths, job, plan = planned(job_file)
    submit(paths, job, plan, "slurm")
    fake_slurm.set(controller=False)
    with pytest.raises(HpcncfError, match="Unable to contact slurm controller"):
        cancel(paths, plan, plan.runs)
    assert read_submissions(paths).cancellations == []
    fake_slurm.set(controller=True)
    assert submit(paths, job, plan, "slurm").runs == []
    assert len(fake_slurm.submitted) == 1


@pytest.mark.usefixtures("fake_slurm")
def test_a_cancellation_waits_for_the_jobs_of_a_submission(job_file: JobFile) -> None:
    paths, _, plan = planned(job_file)
    with ThreadPoolExecutor() as other:
        with locked(paths):
            cancelling = other.submit(cancel, paths, plan, plan.runs)
            with pytest.raises(TimeoutError):
                cancelling.result(timeout=0.3)
        assert cancelling.result() == []


def begun(paths: ResultPaths, ahead_min: int = 0, job: str = "1") -> str:
    """Begin a submission of run `a`, by a host whose clock is ahead; returns when."""
    file = begin(paths, "slurm", ["a", "b"], again=False)
    known = read_record(file, Submission)
    at = datetime.fromisoformat(known.submitted_at) + timedelta(minutes=ahead_min)
    jobs = [SubmittedJob(id=job, runs=["a"])]
    changes = {"submitted_at": at.isoformat(), "jobs": jobs}
    write_record(file, known.model_copy(update=changes))
    return at.isoformat()


@pytest.mark.parametrize("ahead_min", [0, 10])
def test_a_rank_notices_that_its_run_was_cancelled(tmp_path: Path, ahead_min: int) -> None:
    """Since its submission, whatever the clocks of two submitters show."""
    paths = ResultPaths(tmp_path)
    check, rarely = CancelCheck(paths, every_s=0.0), CancelCheck(paths, every_s=1e6)
    assert not check.is_cancelled("a")
    first = begun(paths, ahead_min)
    assert not rarely.is_cancelled("a")
    submissions.cancel(paths, ["a"])
    assert [check.is_cancelled(run) for run in "ab"] == [True, False]
    assert not rarely.is_cancelled("a"), "it reads the folder once in every_s"
    begun(paths, job="2")
    assert not check.is_cancelled("a")
    assert check.is_cancelled("a", first), "the earlier submission is not to run it"
    found = [CancelCheck(paths, job_id=job).is_cancelled("a") for job in ("1", "2", None)]
    assert found == [True, False, False]
    assert read_submissions(paths).last("a").number == 2
