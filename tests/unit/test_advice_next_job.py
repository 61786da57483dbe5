"""The next job: what it asks for, its files, and how a user submits it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import make_results
import pytest
from make_configurations import configuration, diagnosis

from hpcncf.cli import main
from hpcncf.collect.collect import collect
from hpcncf.job.expand import expand_job
from hpcncf.job.load import load_job
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import record_plan
from hpcncf.slurm.site import Site
from hpcncf_analysis.advice.judge import judge
from hpcncf_analysis.advice.next_job import (
    JobChange,
    Purpose,
    WrittenAdvice,
    build_advice,
    build_change,
    build_next_job,
    describe_overrides,
    format_sbatch_lines,
    job_as_yaml,
    judge_job,
    measured_remedies,
    next_job_name,
    write_advice,
)
from hpcncf_analysis.advice.request import build_request
from hpcncf_analysis.configurations import group_configurations
from hpcncf_analysis.diagnosis.evidence import Cause, Diagnosis, Gain
from hpcncf_analysis.planned_job import PlannedJob, read_planned_job, without_length

DATA = {"path": "/data/frappe"}


def run_of(**settings: Any) -> tuple[Run, JobSpec]:
    job = JobSpec.model_validate({"name": "demo", **settings})
    return expand_job(job).runs[0], job


@pytest.mark.parametrize(
    ("name", "following_it"),
    [
        ("demo", "demo-next"),
        ("demo-next", "demo-next2"),
        ("demo-next2", "demo-next3"),
        ("demo-fastest", "demo-next2"),
        ("my runs/2026", "my-runs-2026-next"),
        ("", "command-next"),
        ("a" * 64, "a" * 50 + "-next"),
    ],
)
def test_the_next_job_has_a_results_folder_of_its_own(name: str, following_it: str) -> None:
    assert next_job_name(name, "next") == following_it
    assert JobSpec(name=following_it, workload="ncf", data=DATA)  # type: ignore[arg-type]


def test_the_job_file_is_read_back_as_the_same_job(tmp_path: Path) -> None:
    run, base = run_of(
        data=DATA,
        site="gpu",
        exclusive=True,
        model={"layers": [64, 8]},
        training={"max_steps": 10, "lr": 0.002, "batch_size_per_rank": 64, "loader": "batched"},
        grid={"resources.cpus_per_task": [3], "training.seed": [9]},
    )
    asked = Resources(nodes=2, tasks_per_node=2, cpus_per_task=3, mem_gb=1.5, timeout_min=12)
    job = build_next_job(run, asked, "demo-next", base)
    path = tmp_path / "next.yaml"
    path.write_text(job_as_yaml(job, ["for a reader: 50 % of it", "two"]))
    text = path.read_text()
    assert text.startswith("# for a reader: 50 % of it\n# two\nname: demo-next\nsite: gpu\n")
    for line in ("nodes: 2", "mem_gb: 1.5", "timeout_min: 12", "epochs: 3", "engine: reference"):
        assert f"\n  {line}\n" in text, "a reader looks for it even at its default"
    assert "dropout" not in text
    assert load_job(path) == job
    (again,) = expand_job(job).runs
    assert run.training
    whole_epochs = run.training.model_copy(update={"max_steps": None})
    assert (again.model, again.training) == (run.model, whole_epochs)
    assert again.resources == asked
    assert (job.site, job.exclusive, job.grid) == ("gpu", True, {})


def test_a_command_keeps_its_words_parameters_and_folder(tmp_path: Path) -> None:
    run, base = run_of(
        workload={"command": ["python", "train.py", "--lr", "{lr}"], "folder": "/code"},
        parameters={"lr": 0.1},
        grid={"parameters.lr": [0.5]},
    )
    path = tmp_path / "next.yaml"
    job = build_next_job(run, run.resources, "demo-next", base)
    path.write_text(job_as_yaml(job, []))
    (again,) = expand_job(load_job(path)).runs
    assert (again.words, again.workload) == (run.words, run.workload)
    assert "training" not in path.read_text()


def test_the_request_stands_as_sbatch_lines_for_a_script_of_ones_own() -> None:
    asked = Resources(
        tasks_per_node=2, cpus_per_task=2, gpus_per_node=2, mem_gb=8.0, timeout_min=90
    )
    run, base = run_of(data=DATA)
    job = build_next_job(run, asked, "demo-next", base)
    site = Site(partition="long", account="me", memory="mem_per_gpu")
    lines = format_sbatch_lines(job, site).splitlines()
    assert {
        "#SBATCH --account=me",
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --mem-per-gpu=4096MB",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --partition=long",
        "#SBATCH --time=90",
    } <= set(lines)
    assert lines[-1] == "# and in the script: srun --cpus-per-task=2 ..."


FIVE = {"cores": 5, "cores_used": 1.02, "cpu_efficiency": 0.204}
GAIN = Gain(2.5, 2.0, 3.0)
FEWER = Gain(0.3, 0.2, 0.4, "core_hours")


def changed(found: Diagnosis | None = None, job: Any = None, **row: Any) -> JobChange | None:
    one = configuration("a", **(FIVE | row))
    planned = Resources(cpus_per_task=5, mem_gb=4.0)
    request = build_request(one, planned)
    diagnoses = {found.run_id: found} if found else {}
    table = judge([one], diagnoses)
    assert table
    plain = {"name": "a-next", "data": {"path": "/data"}, "resources": request.resources}
    spec = JobSpec.model_validate(plain | (job or {}))
    return build_change(table.rows[0], spec, planned, request, diagnoses)


def test_cores_that_idled_are_not_requested() -> None:
    """1.02 of 5 cores were used: one is tried, for which five times the time is left."""
    found = changed(job={"training": {"threads": 5}})
    assert found
    assert (found.job.resources.cpus_per_task, found.job.training.threads) == (1, "auto")
    assert found.request.expected_s == pytest.approx(5 * 40)
    assert found.job.resources == found.request.resources
    assert found.before == {"resources.cpus_per_task": 5, "training.threads": 5}


VECTORIZED = {"training.loader": "vectorized"}


@pytest.mark.parametrize(
    ("found", "row"),
    [
        (None, {"cpu_efficiency": 0.9, "cores_used": 4.5}),
        (None, {"others_cores": 2.0}),
        (None, {"cores_used": 4.2}),
        (diagnosis("one_core_confinement"), {}),
        (diagnosis("neighbour_load"), {}),
        # Not the cores either: one thing at a time.
        (diagnosis("python_input", {"training.num_workers": 2}), {}),
        (diagnosis("python_input", VECTORIZED), {}),
        (diagnosis("python_input", {"training.no_such_setting": 1}), {}),
    ],
    ids=[
        *("busy", "disturbed", "no core less", "confined", "neighbours"),
        *("settings that conflict", "the same setting", "an unknown setting"),
    ],
)
def test_nothing_is_changed_without_reason(found: Diagnosis | None, row: dict[str, Any]) -> None:
    assert changed(found, **row) is None


@pytest.mark.parametrize(
    ("found", "expected_s"),
    [
        (
            diagnosis("python_input", VECTORIZED, GAIN),
            40.0,
        ),  # a gain that may not come shortens no limit
        # 0.4 of the core-hours at most, on a fifth of the cores: twice the time.
        (
            diagnosis(
                "python_input", {"resources.cpus_per_task": 1}, Gain(0.3, 0.2, 0.4, "core_hours")
            ),
            80.0,
        ),
        (diagnosis("serial_step"), 200.0),
    ],
)
def test_a_remedy_is_applied_and_has_time_enough(found: Diagnosis, expected_s: float) -> None:
    change = changed(found, job={"training": {"loader": "per_sample"}})
    assert change
    assert found.primary
    changes = found.primary.changes or {"resources.cpus_per_task": 1}
    section, key = next(iter(changes)).split(".")
    assert getattr(getattr(change.job, section), key) == changes[f"{section}.{key}"]
    assert list(change.before) == list(changes), "one remedy at a time"
    assert change.request.expected_s == pytest.approx(expected_s)
    assert change.job.resources.mem_gb == 4.0, "no less than it had"


def written(
    paths: ResultPaths, diagnoses: dict[str, Diagnosis] | None = None
) -> dict[Purpose, WrittenAdvice]:
    planned = read_planned_job(paths)
    shown = group_configurations(collect(paths).runs)
    table = judge_job(shown, planned, diagnoses or {})
    found = write_advice(table, planned, paths, diagnoses or {})
    return {each.advice.purpose: each for each in found}


def causes(paths: ResultPaths, changes: dict[str, Any], cause: Cause) -> dict[str, Diagnosis]:
    runs = make_results.plan_of(paths).runs
    return {run.id: diagnosis(cause, changes, GAIN) for run in runs}


def test_a_studys_best_is_tried_with_its_remedy(tmp_path: Path) -> None:
    alone = [point for point in make_results.POINTS if point["resources.tasks_per_node"] == 1]
    paths = make_results.demo(tmp_path, repeats=1, points=alone)
    make_results.complete(paths)
    found = causes(paths, {"training.engine": "rowwise"}, "dense_optimizer")
    advice = written(paths, found)["next"]
    assert load_job(advice.job).training.engine == "rowwise"
    assert advice.advice.confidence.level == "not run"
    assert advice.advice.changed
    assert advice.advice.changed.before == {"training.engine": "reference"}


def test_a_remedy_that_was_run_is_measured_and_not_tried_again(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    make_results.complete(paths)
    found = causes(paths, {"training.loader": "vectorized"}, "python_input")
    shown, planned = group_configurations(collect(paths).runs), read_planned_job(paths)
    measured = measured_remedies(shown, planned, found)
    by_label = {one.label: one.key for one in shown}
    gain = measured[by_label["1 core · per_sample"], "python_input"]
    assert gain.label == "1 core · vectorized"
    assert gain.factor == pytest.approx(96 / 21)
    assert written(paths, found)["next"].advice.changed is None


def test_longer_runs_are_written_for_what_was_too_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An epoch of 4.36 s and 0.4 s of evaluation: 30 s are seven of them."""
    paths = make_results.demo(tmp_path, site="cpu", points=make_results.POINTS[3:4])
    record_plan(
        paths,
        JobSpec.model_validate({"name": "demo", "data": {"path": str(tmp_path / "data")}}),
        make_results.plan_of(paths),
    )
    make_results.complete(paths)
    found = written(paths, causes(paths, {}, "too_short_to_judge"))
    assert set(found) == {"repeat"}
    job = load_job(found["repeat"].job)
    assert job.training.epochs == 3, "the user's job stays what it was"
    assert [point["training.epochs"] for point in job.points] == [7]
    assert len(planned(found["repeat"].job, capsys)["runs"]) == 3
    assert (found["repeat"].job.name, found["repeat"].script) == ("next.yaml", None)


def test_a_job_measured_at_another_length_is_requested_as_the_job_file_has_it(
    tmp_path: Path,
) -> None:
    """4 s of start-up, 0.3 s of checkpoints, and 20 epochs of 4.36 s with 0.4 s of evaluation."""
    points = [{**make_results.POINTS[3], "training.epochs": 3}]
    paths = make_results.demo(tmp_path, points=points)
    plain = {"name": "demo", "data": {"path": str(tmp_path / "data")}, "training": {"epochs": 20}}
    job = JobSpec.model_validate(plain | {"points": points, "repeats": 3})
    record_plan(paths, job, make_results.plan_of(paths))
    make_results.complete(paths)
    advice = written(paths)["next"].advice
    assert advice.job.training.epochs == 20
    assert advice.chosen.seconds == pytest.approx(
        4 + 3 * 0.1 + 20 * (418_655 / 96_000 + 0.4), rel=1e-4
    )


def test_as_measured_nothing_is_changed(tmp_path: Path) -> None:
    """What `hpcncf tune` verified is requested, whatever cores idled."""
    paths = make_results.demo(tmp_path, points=[make_results.POINTS[1]])
    make_results.complete(paths)
    table, asked = judge(group_configurations(collect(paths).runs)), read_planned_job(paths)
    assert table
    tried, kept = (build_advice(table, asked, as_measured=each) for each in (False, True))
    assert tried.job.resources.cpus_per_task == 1
    assert (kept.job.resources.cpus_per_task, kept.changed) == (2, None)


def planned(path: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> Any:
    """What `hpcncf plan` makes of the job file: it must not complain, but that there is no cluster
    where Slurm's commands are installed alone, and say nothing but what ranks on one GPU use."""
    capsys.readouterr()
    assert main(["plan", str(path), *settings, "--json"]) == 0
    seen = capsys.readouterr()
    expected = ("the cluster's limits", "2 ranks share 1 GPU")
    assert not [line for line in seen.err.splitlines() if not any(one in line for one in expected)]
    return json.loads(seen.out)


def test_each_choice_can_be_planned_from_one_job_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ranks are the fastest; one core takes fewer core-hours."""
    paths = make_results.demo(tmp_path, site="cpu")
    make_results.complete(paths)
    found = written(paths)
    knee, cheapest = found["next"], found["cheapest"]
    assert knee.job == cheapest.job == paths.report / "next.yaml"
    assert (knee.overrides, cheapest.script) == ([], None)
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
    assert load_job(cheapest.job, cheapest.overrides) == cheapest.advice.job
    settings = [word for setting in cheapest.overrides for word in ("-s", setting)]
    assert planned(cheapest.job, capsys, *settings)["job"] == "demo-cheapest"
    command = shlex.split(cheapest.command("next.yaml"))
    assert command == ["hpcncf", "submit", "next.yaml", *settings]
    assert "resources.tasks_per_node=1" in command
    assert f"run={run['id']}\n" in knee.script.read_text()
    assert "#SBATCH --ntasks-per-node=2\n" in knee.script.read_text()


def test_an_earlier_reports_advice_goes(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path)
    make_results.complete(paths)
    paths.report.mkdir()
    (paths.report / "next-cheapest.yaml").touch()  # as versions before wrote it
    assert len(written(paths)) == 2
    assert {path.name for path in paths.report.iterdir()} == {"next.yaml", "next.sbatch"}
    one = make_results.demo(tmp_path / "one", points=[{"training.seed": 9}])
    paths.plan.write_text(one.plan.read_text())
    assert written(paths) == {}
    assert sorted(path.name for path in paths.report.iterdir()) == []


def test_a_command_that_was_typed_becomes_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 of 5 cores was used."""
    (tmp_path / "train.py").touch()
    paths = make_results.command_plan(tmp_path, ["python", "train.py", "{x}"])
    make_results.complete(paths)
    only = written(paths)["next"]
    (run,) = planned(only.job, capsys)["runs"]
    assert run["workload"]["command"] == ["python", "train.py", "{{x}}"]
    assert run["resources"]["cpus_per_task"] == 1
    assert run["resources"]["timeout_min"] == 13, "100 s on a fifth of the cores, and half as much"
    assert only.advice.confidence.level == "not run", "with one core it never ran"


def test_one_run_of_those_that_shared_a_node_asks_for_its_own_cores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_results.demo(tmp_path, site="cpu", resources={"runs_per_node": 3})
    make_results.complete(paths)
    knee = written(paths)["next"]
    plan = planned(knee.job, capsys)
    (run,), (array,) = plan["runs"], plan["arrays"]
    assert run["resources"]["runs_per_node"] == 1
    assert array["parameters"]["tasks_per_node"] == 2
    assert array["parameters"]["mem_gb"] == 1.0
    assert "#SBATCH --cpus-per-task=1\n" in knee.advice.sbatch
    assert "#SBATCH --mem=1024M\n" in knee.advice.sbatch
    assert knee.script is not None, "a plain script starts one run"
    (seen,) = [line for line in knee.advice.reasons if line.startswith("Measured with")]
    assert seen.startswith("Measured with 3 runs side by side")


def test_runs_whose_price_is_their_part_of_a_gpu_are_asked_for_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = {"gpus_per_node": 1, "runs_per_node": 8, "runs_per_gpu": 4, "mps": True}
    paths = make_results.demo(tmp_path, site="cpu", resources=shared, repeats=8)
    make_results.complete(paths)
    knee = written(paths)["next"]
    plan = planned(knee.job, capsys)
    (array,) = plan["arrays"]
    assert (len(plan["runs"]), array["tasks"], array["side_by_side"]) == (4, 1, 4)
    assert array["parameters"]["gpus_per_node"] == 1
    assert "#SBATCH --gpus-per-node=1\n" in knee.advice.sbatch
    assert knee.advice.sbatch.endswith("# for 4 runs side by side, each on 2 cores of its own\n")
    (seen,) = [line for line in knee.advice.reasons if line.startswith("Measured with")]
    alone = "-s repeats=1 -s resources.runs_per_gpu=1 -s resources.mps=false"
    assert alone in seen
    (run,) = planned(knee.job, capsys, *alone.split())["runs"]
    assert (run["resources"]["runs_per_gpu"], run["resources"]["mps"]) == (1, False)


@pytest.mark.parametrize("data", ["other data", "an earlier format"])
def test_without_the_data_there_is_a_job_file_and_no_script(data: str, tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, data={"path": str(tmp_path / "data"), "dataset": "frappe"})
    make_results.complete(paths)
    if data == "other data":
        other = make_results.manifest(dataset="movielens", key="other")
        (tmp_path / "data/manifest.json").write_text(other.model_dump_json())
    else:
        make_results.of_format_3(tmp_path / "data")
    first = written(paths)["next"]
    assert first.script is None
    assert load_job(first.job).name == "demo-next"


@pytest.mark.parametrize(
    "changes",
    [
        {"resources": {"cpus_per_task": 4, "mem_gb": 2.5}, "name": "b"},
        {"training": {"batch_size_per_rank": 64}},
        {"training": {"max_steps": 5, "optimizer": "sgd", "lr": 0.01}},
        {"points": [{"resources.cpus_per_task": 2, "training.seed": 3}], "repeats": 3},
        {"parameters": {"x": "a b, {c}: #", "y": True}},
        {"remedies": {"threads": 2, "rowwise": True}},
    ],
)
def test_settings_of_the_command_line_make_one_job_of_another(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    command = {"workload": {"command": ["train", "{x}", "{y}"], "folder": str(tmp_path)}}
    of_command = {"parameters", "remedies"} & set(changes)
    plain: dict[str, Any] = {"name": "a", "parameters": {"x": 1e-3, "y": 2}, **command}
    if not of_command:
        plain = {"name": "a", "data": {"path": str(tmp_path / "data")}}
    base, job = (JobSpec.model_validate(each) for each in (plain, plain | changes))
    for one, other in ((base, job), (job, base)):
        path = tmp_path / "job.yaml"
        path.write_text(job_as_yaml(one, []))
        assert load_job(path, describe_overrides(one, other)) == other


def study(**settings: Any) -> PlannedJob:
    plain = {"name": "a", "data": {"path": "/d"}, **settings}
    job = JobSpec.model_validate(plain)
    return PlannedJob("a", {run.id: run for run in expand_job(job, {"/d": "key"}).runs}, job)


def test_the_base_stands_outside_the_grid_if_it_is_a_run_of_its_own() -> None:
    """Two ranks of engine rowwise need a sync, which only the grid gives."""
    asked = study(
        resources={"cpus_per_task": 2}, grid={"resources.cpus_per_task": [1, 2, 4]}, repeats=3
    )
    of_base = [run for run in asked.runs.values() if run.resources.cpus_per_task == 2]
    assert len(of_base) == 3
    assert asked.base in set(map(without_length, of_base))
    ranks = {"resources": {"tasks_per_node": 2}, "training": {"engine": "rowwise"}}
    assert study(**ranks, grid={"training.sync": ["rows"]}).base is None
    assert PlannedJob("run", {}).base is None


@pytest.mark.parametrize("text", ["name: [", "name: a\nno_such_key: 1\n"])
def test_a_job_file_that_cannot_be_read_leaves_the_plan(tmp_path: Path, text: str) -> None:
    paths = make_results.demo(tmp_path)
    paths.job.write_text(text)
    asked = read_planned_job(paths)
    assert (asked.name, asked.job, asked.base) == ("demo", None, None)
    assert len(asked.runs) == 18


def test_a_site_of_another_machine_asks_for_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("partition: long\n")
    paths = ResultPaths(tmp_path / "results")
    job = JobSpec.model_validate({"name": "a", "data": {"path": "/d"}, "site": str(site)})
    record_plan(paths, job, expand_job(job))
    assert read_planned_job(paths).site.partition == "long"
    site.unlink()
    assert read_planned_job(paths).site == Site()
