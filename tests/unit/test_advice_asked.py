"""What was asked for so far, as far as the results folder tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import make_results
import pytest

from hpcncf.job.plan import configuration_id, expand_job
from hpcncf.job.spec import JobSpec
from hpcncf.paths import ResultPaths
from hpcncf.records.results_folder import leave_plan
from hpcncf.slurm.site import Site
from hpcncf_analysis.advice.next_job import PlannedJob, read_request


def study(**settings: Any) -> PlannedJob:
    plain = {"name": "a", "data": {"path": "/d"}, **settings}
    job = JobSpec.model_validate(plain)
    return PlannedJob("a", {run.id: run for run in expand_job(job, {"/d": "key"}).runs}, job)


def test_the_base_is_what_stands_outside_the_grid() -> None:
    asked = study(
        resources={"cpus_per_task": 2}, grid={"resources.cpus_per_task": [1, 2, 4]}, repeats=3
    )
    of_base = {run.id for run in asked.runs.values() if run.resources.cpus_per_task == 2}
    assert len(of_base) == 3
    assert asked.base in {configuration_id(asked.runs[run_id]) for run_id in of_base}


def test_a_base_that_is_no_run_of_its_own_is_none() -> None:
    """Two ranks of engine rowwise need a sync, which only the grid gives."""
    asked = study(
        resources={"tasks_per_node": 2},
        training={"engine": "rowwise"},
        grid={"training.sync": ["rows"]},
    )
    assert asked.base is None
    assert PlannedJob("run", {}).base is None


@pytest.mark.parametrize("text", ["name: [", "name: a\nno_such_key: 1\n"])
def test_a_job_file_that_cannot_be_read_leaves_the_plan(tmp_path: Path, text: str) -> None:
    paths = make_results.demo(tmp_path)
    paths.job.write_text(text)
    asked = read_request(paths)
    assert (asked.name, asked.job, asked.base) == ("demo", None, None)
    assert len(asked.runs) == 18


def test_a_site_of_another_machine_asks_for_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("partition: long\n")
    paths = ResultPaths(tmp_path / "results")
    job = JobSpec.model_validate({"name": "a", "data": {"path": "/d"}, "site": str(site)})
    leave_plan(paths, job, expand_job(job))
    assert read_request(paths).site.partition == "long"
    site.unlink()
    assert read_request(paths).site == Site()
