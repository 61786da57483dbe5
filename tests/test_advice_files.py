"""The next job's files, as a report leaves them and as a user submits them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import make_results
import pytest

from hpcncf import jobfile, results
from hpcncf.cli import main
from hpcncf.collect import collect
from hpcncf.paths import ResultPaths
from hpcncf.plan import expand
from hpcncf.spec import JobSpec
from hpcncf_analysis import summary
from hpcncf_analysis.advice import files
from hpcncf_analysis.advice.files import Written


def written(paths: ResultPaths) -> list[Written]:
    return files.write(summary.configurations(collect(paths).runs), paths, {})


def planned(path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """What `hpcncf plan` makes of the job file: it must not complain, but that there is no cluster
    where Slurm's commands are installed alone."""
    capsys.readouterr()
    assert main(["plan", str(path), "--json"]) == 0
    told = capsys.readouterr()
    assert not [line for line in told.err.splitlines() if "the cluster's limits" not in line]
    return json.loads(told.out)


def test_each_choice_is_a_job_file_that_can_be_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo's knee is its fastest, two ranks; one core costs a ninth less an epoch."""
    paths = make_results.demo(tmp_path, site="cpu")
    make_results.complete(paths)
    knee, cheapest = written(paths)
    assert (knee.job.name, cheapest.job.name) == ("next.yaml", "next-cheapest.yaml")
    plan = planned(knee.job, capsys)
    (run,) = plan["runs"]
    assert plan["job"] == "demo-next"
    assert not plan["data_missing"]
    assert run["training"]["loader"] == "vectorized"
    assert {name: run["resources"][name] for name in ("tasks_per_node", "cpus_per_task")} == {
        "tasks_per_node": 2,
        "cpus_per_task": 1,
    }
    assert run["resources"]["mem_gb"] == 1.0, "two ranks of 400 MiB, and a quarter"
    assert planned(cheapest.job, capsys)["job"] == "demo-cheapest"
    assert knee.script is not None
    assert f"run={run['id']}\n" in knee.script.read_text()
    assert "#SBATCH --ntasks-per-node=2\n" in knee.script.read_text()


def test_what_the_job_file_asked_for_is_what_the_choice_saves_against(tmp_path: Path) -> None:
    """2 cores, per_sample: 2 x 418,655 / 22,000 = 38.1 core-seconds; two ranks: 4.90."""
    base = {"resources": {"cpus_per_task": 2}, "training": {"loader": "per_sample"}}
    paths = make_results.demo(tmp_path, **base)
    job = JobSpec.model_validate(
        {"name": "demo", "data": {"path": str(tmp_path / "data")}, **base}
        | {"points": make_results.POINTS, "repeats": 3}
    )
    results.leave_plan(paths, job, expand(job, {str(tmp_path / "data"): "key"}))
    make_results.complete(paths)
    saves = written(paths)[0].advice.saves
    assert saves is not None
    assert saves.was_asked
    assert saves.against.label == "2 cores · per_sample"
    assert 3600 * saves.core_h == pytest.approx(2 * 5 * 83_731 * (1 / 22_000 - 1 / 171_000))
    (told,) = [line for line in written(paths)[0].advice.reasons if line.startswith("Against")]
    assert "it saves 33.2\u202fcore-s (87\u202f%), takes 16.6\u202fs less (87\u202f%)" in told


def test_an_earlier_reports_advice_goes(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path)
    make_results.complete(paths)
    assert len(written(paths)) == 2
    one = make_results.demo(tmp_path / "one", points=[{"training.seed": 9}])
    paths.plan.write_text(one.plan.read_text())
    assert written(paths) == []
    assert sorted(path.name for path in paths.report.iterdir()) == []


def test_a_command_that_was_typed_becomes_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 of 5 cores was used."""
    paths = make_results.command_plan(tmp_path, ["python", "train.py", "{x}"])
    make_results.complete(paths)
    (only,) = written(paths)
    (run,) = planned(only.job, capsys)["runs"]
    assert run["workload"]["command"] == ["python", "train.py", "{{x}}"]
    assert run["resources"]["cpus_per_task"] == 1
    assert run["resources"]["timeout_min"] == 13, "100 s on a fifth of the cores, and half as much"
    assert only.advice.sure.sure == "unproven", "with one core it never ran"


def test_where_other_data_lies_by_now_there_is_a_job_file_and_no_script(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, data={"path": str(tmp_path / "data"), "dataset": "frappe"})
    make_results.complete(paths)
    other = make_results.manifest(dataset="movielens", key="key")
    (tmp_path / "data/manifest.json").write_text(other.model_dump_json())
    first = written(paths)[0]
    assert first.script is None
    assert jobfile.load(first.job).name == "demo-next"
