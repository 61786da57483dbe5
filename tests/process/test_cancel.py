"""Cancelling: what is reported as cancelled is so, and nothing is sent twice for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import FakeSlurm

from hpcncf.errors import HpcncfError
from hpcncf.job.load import build_plan, load_job
from hpcncf.job.plan import Plan
from hpcncf.job.spec import JobSpec
from hpcncf.launch import cancel
from hpcncf.launch.submit import submit
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import leave_plan, locked
from hpcncf.records.submissions import read_submissions

JobFile = Callable[[str], Path]
SWEEP = "grid: {training.seed: [1, 2, 3]}\n"


def planned(job_file: JobFile) -> tuple[ResultPaths, JobSpec, Plan]:
    path = job_file(SWEEP)
    job, paths = load_job(path), ResultPaths(path.parent / "results/tiny")
    return paths, job, leave_plan(paths, job, build_plan(job, path))


def test_what_slurm_did_not_cancel_is_not_reported_as_cancelled(
    job_file: JobFile, fake_slurm: FakeSlurm
) -> None:
    """Else `retry` would send once more what is queued all the same."""
    paths, job, plan = planned(job_file)
    submit(paths, job, plan, "slurm")
    fake_slurm.set(controller=False)
    with pytest.raises(HpcncfError, match="Unable to contact slurm controller"):
        cancel.cancel(paths, plan, plan.runs)
    assert read_submissions(paths).cancellations == []
    fake_slurm.set(controller=True)
    assert submit(paths, job, plan, "slurm").runs == []
    assert len(fake_slurm.submitted) == 1


@pytest.mark.usefixtures("fake_slurm")
def test_who_cancels_while_somebody_submits_waits_for_the_jobs(job_file: JobFile) -> None:
    paths, _, plan = planned(job_file)
    with ThreadPoolExecutor() as other:
        with locked(paths):
            cancelling = other.submit(cancel.cancel, paths, plan, plan.runs)
            with pytest.raises(TimeoutError):
                cancelling.result(timeout=0.5)
        assert cancelling.result() == []
