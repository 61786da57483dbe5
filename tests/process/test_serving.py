"""Engine rowwise in the plan where the native one was not built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcncf.job.engine_fallback import missing_native_engine, with_engine_fallback
from hpcncf.job.expand import expand_job
from hpcncf.job.spec import JobSpec

ROOT = Path(__file__).parents[2]
THREADS = {"training.threads": [1, 2]}
ENGINES = {"training.engine": ["rowwise", "native"]}


def job(**changes: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "data": {"path": "somewhere"}, **changes})


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ({"training": {"engine": "native"}}, {"training": {"engine": "rowwise"}}),
        (
            {"training": {"engine": "native"}, "grid": THREADS},
            {"training": {"engine": "rowwise"}, "grid": THREADS},
        ),
        ({"grid": ENGINES}, {"training": {"engine": "rowwise"}}),
        (
            {"grid": {**ENGINES, **THREADS}, "exclude": [{"training.engine": "native"}]},
            {"training": {"engine": "rowwise"}, "grid": THREADS},
        ),
        (
            {"points": [{"training.engine": "native", "training.lr": 0.1}]},
            {"training": {"engine": "rowwise", "lr": 0.1}},
        ),
    ],
)
def test_runs_are_those_of_a_job_that_asks_for_rowwise(
    asked: dict[str, Any], same: dict[str, Any]
) -> None:
    resources = {"resources": {"cpus_per_task": 2}}
    found = expand_job(with_engine_fallback(job(**asked, **resources), "no compiler")).runs
    assert [run.id for run in found] == [
        run.id for run in expand_job(job(**same, **resources)).runs
    ]
    assert {run.training.engine for run in found if run.training} == {"rowwise"}


def test_a_job_stays_as_it_is_where_the_engine_is_there() -> None:
    asked = job(grid=ENGINES)
    assert with_engine_fallback(asked, None) is asked
    assert missing_native_engine(job(grid={"training.lr": [0.1]})) is None


def test_without_a_compiler_the_plan_names_the_fallback_in_one_line(tmp_path: Path) -> None:
    """In a copy of the program that was installed without one."""
    without = shutil.ignore_patterns("*.so", "src", "__pycache__")
    for part in ("hpcncf", "slurm_templates"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=without)
    asked = {"name": "a", "data": {"path": "x"}, "training": {"engine": "native"}}
    (tmp_path / "job.yaml").write_text(json.dumps(asked))
    done = subprocess.run(
        [sys.executable, "-m", "hpcncf", "plan", "job.yaml", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert '"rowwise"' in done.stdout
    assert '"native"' not in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("hpcncf: engine native was not built: there was no C++ compiler")
    assert "falling back to engine rowwise" in line
