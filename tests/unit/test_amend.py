"""What is sent once more may get more memory or time, and nothing that makes it another run."""

from __future__ import annotations

from pathlib import Path

import make_results
import pytest
from make_results import plan_of

from hpcncf.errors import UsageError
from hpcncf.launch import retry
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan


def test_runs_still_to_be_sent_get_it_and_the_plan_keeps_it(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    before = plan_of(paths).runs
    make_results.complete(paths, before[:2])
    seen = ["resources.mem_gb=7", "resources.timeout_min=99", "resources.runs_per_task=4"]
    plan = retry.amend(ResultPaths(paths.folder), seen)
    assert read_plan(paths) == plan
    assert plan.runs[:2] == before[:2]
    given = [run.resources for run in plan.runs[2:]]
    assert {(one.mem_gb, one.timeout_min, one.runs_per_task) for one in given} == {(7, 99, 4)}
    assert [run.id for run in plan.runs] == [run.id for run in before]


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        (
            "training.epochs=9",
            r"would make it a different run.*resources\.mem_gb, ",
        ),
        ("resources.cpus_per_task=2", "Submit the job file with that"),
        ("resources.timeout_min", "expected key=value"),
        ("resources.timeout_min=0", "timeout_min: .*greater than 0; came 0"),
        ("resources.mem_gb=much", "mem_gb: .*came 'much'"),
    ],
)
def test_what_would_change_the_run_is_refused(tmp_path: Path, setting: str, complaint: str) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    before = paths.plan.read_text()
    with pytest.raises(UsageError, match=complaint):
        retry.amend(paths, [setting])
    assert paths.plan.read_text() == before
