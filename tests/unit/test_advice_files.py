"""The next job's files, as a report leaves them and as a user submits them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import make_results
import pytest

from hpcncf.cli import main
from hpcncf.collect.collect import collect
from hpcncf.job.load import load_job
from hpcncf.job.plan import expand_job
from hpcncf.job.spec import JobSpec
from hpcncf.paths import ResultPaths
from hpcncf.records.results_folder import leave_plan
from hpcncf_analysis.advice.next_job import WrittenAdvice, write_advice
from hpcncf_analysis.configurations import group_configurations


def written(paths: ResultPaths) -> list[WrittenAdvice]:
    return write_advice(group_configurations(collect(paths).runs), paths, {})


def planned(path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """What `hpcncf plan` makes of the job file: it must not complain, but that there is no cluster
    where Slurm's commands are installed alone, and tell nothing but what ranks on one GPU use."""
    return planned_with(path, [], capsys)


def planned_with(path: Path, settings: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert main(["plan", str(path), *settings, "--json"]) == 0
    told = capsys.readouterr()
    expected = ("the cluster's limits", "2 ranks share 1 GPU")
    assert not [line for line in told.err.splitlines() if not any(one in line for one in expected)]
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
    leave_plan(paths, job, expand_job(job, {str(tmp_path / "data"): "key"}))
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


def test_one_run_of_those_that_shared_a_node_asks_for_its_own_cores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_results.demo(tmp_path, site="cpu", resources={"runs_per_node": 3})
    make_results.complete(paths)
    knee = written(paths)[0]
    plan = planned(knee.job, capsys)
    (run,), (array,) = plan["runs"], plan["arrays"]
    assert run["resources"]["runs_per_node"] == 1
    assert array["parameters"]["tasks_per_node"] == 2
    assert array["parameters"]["mem_gb"] == 1.0
    assert "#SBATCH --cpus-per-task=1\n" in knee.advice.sbatch
    assert "#SBATCH --mem=1024M\n" in knee.advice.sbatch
    assert knee.script is not None, "a plain script starts one run"
    (told,) = [line for line in knee.advice.reasons if line.startswith("Measured with")]
    assert told.startswith("Measured with 3 runs side by side; one alone is asked for")


def test_runs_whose_price_is_their_part_of_a_gpu_are_asked_for_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = {"gpus_per_node": 1, "runs_per_node": 8, "runs_per_gpu": 4, "mps": True}
    paths = make_results.demo(tmp_path, site="cpu", resources=shared, repeats=8)
    make_results.complete(paths)
    knee = written(paths)[0]
    plan = planned(knee.job, capsys)
    (array,) = plan["arrays"]
    assert (len(plan["runs"]), array["tasks"], array["side_by_side"]) == (4, 1, 4)
    assert array["parameters"]["gpus_per_node"] == 1
    assert "#SBATCH --gpus-per-node=1\n" in knee.advice.sbatch
    assert knee.advice.sbatch.endswith("# for 4 runs side by side, each on 2 cores of its own\n")
    (told,) = [line for line in knee.advice.reasons if line.startswith("Measured with")]
    alone = "-s repeats=1 -s resources.runs_per_gpu=1 -s resources.mps=false"
    assert f"one alone ({alone}) pays for all of the GPU" in told
    (run,) = planned_with(knee.job, alone.split(), capsys)["runs"]
    assert (run["resources"]["runs_per_gpu"], run["resources"]["mps"]) == (1, False)


def test_where_other_data_lies_by_now_there_is_a_job_file_and_no_script(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, data={"path": str(tmp_path / "data"), "dataset": "frappe"})
    make_results.complete(paths)
    other = make_results.manifest(dataset="movielens", key="key")
    (tmp_path / "data/manifest.json").write_text(other.model_dump_json())
    first = written(paths)[0]
    assert first.script is None
    assert load_job(first.job).name == "demo-next"


def test_where_the_data_is_of_an_earlier_format_there_is_a_job_file_and_no_script(
    tmp_path: Path,
) -> None:
    paths = make_results.demo(tmp_path)
    make_results.complete(paths)
    make_results.of_format_3(tmp_path / "data")
    first = written(paths)[0]
    assert first.script is None
    assert load_job(first.job).name == "demo-next"
