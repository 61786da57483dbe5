"""What `plan` and `status` show of a run: only what differs from the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcncf.cli.output import usual_values, varies
from hpcncf.cli.plan import incomplete_packs
from hpcncf.job.expand import expand_job
from hpcncf.job.load import load_job
from hpcncf.job.spec import JobSpec

JOBS = Path(__file__).parents[2] / "jobs"


def shown(job: JobSpec) -> list[str]:
    runs = [run for run in expand_job(job).runs if run.repeat == 0]
    usual = usual_values(runs)
    return [varies(run, usual) for run in runs]


def job(**settings: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "data": {"path": "/d"}} | settings)


def test_of_many_remedies_each_run_shows_its_own() -> None:
    texts = shown(load_job(JOBS / "remedies.yaml"))
    assert "baseline" in texts
    assert "accumulate=4" in texts
    assert max(len(text.split()) for text in texts) <= 5
    assert not [text for text in texts if "None" in text]


def test_of_few_settings_every_value_is_shown() -> None:
    grid = {"resources.cpus_per_task": [1, 2], "training.loader": ["per_sample"]}
    assert sorted(shown(job(grid=grid))) == [
        "cpus_per_task=1 loader=per_sample",
        "cpus_per_task=2 loader=per_sample",
    ]


@pytest.mark.parametrize(
    ("repeats", "lines"), [(1, 1), (4, 0), (6, 1)], ids=["one", "full", "two left"]
)
def test_a_pack_of_too_few_runs_is_named_with_what_it_requests(repeats: int, lines: int) -> None:
    resources = {"gpus_per_node": 1, "runs_per_gpu": 4, "cpus_per_task": 4, "mem_gb": 4}
    found = incomplete_packs(expand_job(job(resources=resources, repeats=repeats)))
    assert len(found) == lines
    assert all("16 cores and 16 GB" in line for line in found)
