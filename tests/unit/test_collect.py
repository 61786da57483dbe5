"""Every planned run stays, broken files are named, the same state gives the same bytes."""

from __future__ import annotations

import csv
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import make_results
import pytest
from make_results import START

from hpcncf import files
from hpcncf.cli import main
from hpcncf.collect import resource_columns
from hpcncf.collect.collect import COLUMNS, Collected, as_csv, collect, write
from hpcncf.collect.training_columns import EVALUATION, SYNC, figures_trained, phase_shares
from hpcncf.errors import UsageError
from hpcncf.job.plan import Plan, Run, merge_plans
from hpcncf.paths import ResultPaths
from hpcncf.records import schema
from hpcncf.records.claims import claim_attempt
from hpcncf.records.schema import RankRecord

FAILED: dict[str, Any] = {
    "outcome": "failed",
    "exit_code": 1,
    "error": {"type": "ValueError", "message": "no", "traceback": ""},
}


@pytest.fixture
def paths(tmp_path: Path) -> ResultPaths:
    """Six runs, none of them begun."""
    return make_results.demo(tmp_path, repeats=1)


@pytest.fixture
def complete(paths: ResultPaths) -> ResultPaths:
    make_results.complete(paths)
    return paths


def bytes_of(paths: ResultPaths) -> dict[str, bytes]:
    write(collect(paths), paths)
    return {name: (paths.tables / f"{name}.csv").read_bytes() for name in COLUMNS}


def written(paths: ResultPaths, name: str) -> list[dict[str, str]]:
    with (paths.tables / f"{name}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def shaped(paths: ResultPaths, tasks: int = 1, cpus: int = 1) -> Run:
    """A planned run of that many ranks and cores each."""
    return next(
        run
        for run in make_results.plan_of(paths).runs
        if (run.resources.tasks_per_node, run.resources.cpus_per_task) == (tasks, cpus)
    )


def row(found: Collected, run: Run) -> dict[str, Any]:
    return next(row for row in found.runs if row["run_id"] == run.id)


def test_every_planned_run_has_a_row_and_the_same_state_gives_the_same_bytes(
    paths: ResultPaths,
) -> None:
    runs = make_results.plan_of(paths).runs
    make_results.complete(paths, runs[:3])
    make_results.leave(paths, runs[3], **FAILED)
    first = bytes_of(paths)
    found = collect(paths)
    assert found.counts() == {"completed": 3, "failed": 1, "planned": 2}
    assert "no" in row(found, runs[3])["reason"]
    names = [run.id for run in runs]
    assert [row["run_id"] for row in found.runs] == names
    assert [row["run_id"] for row in written(paths, "runs")] == names
    assert bytes_of(paths) == first
    make_results.complete(paths)
    assert bytes_of(paths) != first


def test_the_varied_settings_are_columns_and_no_column_stands_twice(complete: ResultPaths) -> None:
    write(collect(complete), complete)
    run = shaped(complete, tasks=2)
    (got,) = [row for row in written(complete, "runs") if row["run_id"] == run.id]
    assert (got["tasks_per_node"], got["world_size"], got["threads"]) == ("2", "2", "1")
    assert (got["state"], got["batch"], got["retired"]) == ("completed", "256", "false")
    assert got["data_title"].startswith("Frappe")
    for columns in COLUMNS.values():
        assert len(set(columns)) == len(columns)


def test_a_notebook_gets_the_tables_as_frames(complete: ResultPaths) -> None:
    frames = collect(complete).frames()
    assert {name: list(frame.columns) for name, frame in frames.items()} == COLUMNS
    runs = frames["runs"]
    assert len(runs) == runs["instances_per_s"].count() == 6
    assert runs["max_steps"].dtype == float, "a column that nobody filled is no column of objects"
    assert set(runs["loader"]) == {"per_sample", "vectorized"}


def test_a_cell_is_plain_text() -> None:
    table = [{"a": None, "b": ["x", "y"], "c": True, "d": {"k": 1}, "e": 0.1, "z": 1}]
    assert as_csv(table, ["a", "b", "c", "d", "e"]) == (
        'a,b,c,d,e,z\n,x; y,true,"{""k"": 1}",0.1,1\n'
    )


def test_retired_runs_are_kept_and_do_not_count(paths: ResultPaths) -> None:
    old = make_results.plan_of(paths)
    kept = old.model_copy(update={"runs": old.runs[:2]})
    files.write_text(paths.plan, merge_plans(old, kept).model_dump_json())
    make_results.complete(paths, old.runs[:2])
    found = collect(paths)
    assert len(found.runs) == 6
    assert found.counts() == {"completed": 2}
    assert found.complete


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rank-0.json", '{"kind": "rank", "schema_version": 1, "run_id'),
        ("rank-0.json", ""),
        ("rank-0.json", "\x00\x01"),
        ("rank-0.json", '{"kind": "shopping list"}'),
        ("rank-0.json", '{"kind": "rank", "schema_version": 99}'),
        ("rank-0.json", '{"kind": "rank", "schema_version": 1}'),
        ("node-0.json", "[1, 2"),
        ("node-0.json", '{"kind": "rank", "schema_version": 1}'),
        ("notes.json", "{}"),
    ],
)
def test_a_broken_or_foreign_file_is_named_and_the_rest_collected(
    complete: ResultPaths, name: str, text: str
) -> None:
    victim = shaped(complete)
    (complete.run(victim.id).attempt(1).folder / name).write_text(text)
    found = collect(complete)
    (skipped,) = found.skipped
    assert name in skipped
    assert victim.id in skipped
    whole = [row for row in found.runs if row["state"] == "completed"]
    assert len(whole) == (5 if name == "rank-0.json" else 6)
    assert all(row["cpu_efficiency"] for row in whole)


def test_the_files_of_a_trial_are_known(complete: ResultPaths) -> None:
    attempt = complete.run(shaped(complete).id).attempt(1)
    attempt.trial.write_text("{}")
    assert collect(complete).skipped == []


def test_what_belongs_to_other_runs_is_named_and_not_taken_for_ones_own(
    complete: ResultPaths,
) -> None:
    one, other = make_results.plan_of(complete).runs[:2]
    for name in ("node-0.json", "rank-0.json"):
        text = (complete.run(other.id).attempt(1).folder / name).read_text()
        (complete.run(one.id).attempt(1).folder / name).write_text(text)
    (complete.folder / "runs" / "backup of monday").mkdir()
    found = collect(complete)
    assert sum(other.id in reason for reason in found.skipped) == 2
    assert any("backup of monday" in reason for reason in found.skipped)
    assert row(found, one)["cpu_efficiency"] is None
    assert row(found, one)["state"] != "completed"


def test_a_node_whose_series_differ_in_length_is_named_and_skipped(paths: ResultPaths) -> None:
    run = shaped(paths)
    make_results.leave(paths, run)
    node = make_results.node_record(run, windows=3).model_copy(update={"steal": [0.0]})
    schema.write_record(paths.run(run.id).attempt(1).node(0), node)
    found = collect(paths)
    assert found.cores == []
    (got,) = found.skipped
    assert "node-0.json" in got
    assert "the 3 windows of start_s" in got


def test_half_of_a_runs_ranks_give_no_figures(complete: ResultPaths) -> None:
    run = shaped(complete, tasks=2)
    complete.run(run.id).attempt(1).rank(1).unlink()
    found = collect(complete)
    got = row(found, run)
    assert got["state"] != "completed"
    assert (got["instances_per_s"], got["cores_allocated"]) == (None, 2)
    assert sum(row["run_id"] == run.id for row in found.ranks) == 1


def test_one_rank_is_accounted_as_seff_does(paths: ResultPaths) -> None:
    """2 cores for 100 s, 90 s + 12 s of CPU time: 102 / 200."""
    run = shaped(paths, cpus=2)
    cpu = make_results.rank_record(run, 0).cpu
    ended = {"ended_at": (START + timedelta(seconds=100)).isoformat(), "elapsed_s": 100.0}
    spent = cpu.model_copy(update={"user_s": 90.0, "system_s": 12.0})
    make_results.leave(paths, run, cpu=spent, **ended)
    found = row(collect(paths), run)
    expected = {
        "elapsed_s": 100,
        "cpu_efficiency": 0.51,
        "cores_used": 1.02,
        "core_hours": 2 * 100 / 3600,
        "core_hours_wasted": (200 - 102) / 3600,
        "time_efficiency": 100 / 1800,
        "memory_efficiency": 400 / 4096,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


@pytest.fixture
def ranks(paths: ResultPaths) -> list[RankRecord]:
    """Two ranks of one run."""
    run = shaped(paths, tasks=2)
    return [make_results.rank_record(run, rank) for rank in (0, 1)]


def measured(ranks: list[RankRecord], epoch: int | None = None, **training: Any) -> dict[str, Any]:
    run = Run.model_validate(ranks[0].run)
    assert run.training
    changed = run.model_copy(update={"training": run.training.model_copy(update=training)})
    return resource_columns.measure(changed, ranks, epoch)


def test_ranks_that_overlap_are_timed_from_first_start_to_last_end(
    ranks: list[RankRecord],
) -> None:
    for record, start, end in zip(ranks, (0, 1), (9, 11), strict=True):
        record.started_at = (START + timedelta(seconds=start)).isoformat()
        record.ended_at = (START + timedelta(seconds=end)).isoformat()
    assert resource_columns.elapsed(ranks) == 11


def test_speed_is_all_ranks_instances_over_the_slowest_ranks_time(
    ranks: list[RankRecord],
) -> None:
    """(600 + 400) / max(2, 4); an epoch at that speed, on two cores."""
    for record, instances, seconds in zip(ranks, (600, 400), (2.0, 4.0), strict=True):
        assert record.training
        record.training.counted_instances = instances
        record.training.counted_s = seconds
    found = measured(ranks)
    assert found["instances_per_s"] == 250
    assert found["seconds_per_epoch"] == found["instances_per_epoch"] / 250
    assert found["core_s_per_epoch"] == 2 * found["seconds_per_epoch"]
    assert not found["epoch_extrapolated"]


def test_an_epoch_cut_short_is_extrapolated_unless_one_was_whole(ranks: list[RankRecord]) -> None:
    for record in ranks:
        assert record.training
        record.training.counted_instances, record.training.counted_s = 500, 2.0
    found = measured(ranks, 50_000, max_steps=5)
    assert (found["seconds_per_epoch"], found["epoch_extrapolated"]) == (100, True)
    assert measured(ranks, None, max_steps=5)["seconds_per_epoch"] is None
    for record in ranks:
        assert record.training
        for epoch in record.training.epochs[1:]:
            epoch.instances = 10
    assert ranks[0].training
    whole = ranks[0].training.epochs[0].instances
    found = measured(ranks, whole, max_steps=400)
    assert found["seconds_per_epoch"] == whole / 500
    assert (found["instances_per_epoch"], found["epoch_extrapolated"]) == (whole, False)
    assert measured(ranks, None, max_steps=400)["instances_per_epoch"] is None
    assert found["epochs_done"] is None
    assert measured(ranks, whole, max_s=3.0)["epochs_done"] == 1


def test_a_resumed_runs_epoch_is_that_of_the_attempt_that_has_the_other_figures(
    ranks: list[RankRecord],
) -> None:
    for record in ranks:
        assert record.training
        record.training.resumed_epoch = 1
        record.training.epochs[0].instances = 7
    assert ranks[0].training
    assert measured(ranks)["instances_per_epoch"] == ranks[0].training.epochs[1].instances


@pytest.mark.parametrize(
    ("masks", "nodes", "quota", "usable"),
    [
        (([0], [1]), (0, 0), None, 2),
        (([0, 1], [0, 1]), (0, 0), None, 2),
        (([0], [0]), (0, 0), None, 1),
        (([0, 1], [0, 1]), (0, 1), None, 4),
        (([0, 1], [0, 1]), (0, 0), 1.5, 1.5),
        (([0, 1], [0, 1]), (0, 1), 1.5, 3),
        (([0], [1]), (0, 0), 8.0, 2),
    ],
)
def test_usable_cores_are_each_nodes_union_within_its_quota(
    ranks: list[RankRecord], masks: Any, nodes: Any, quota: float | None, usable: float
) -> None:
    for record, cpus, node in zip(ranks, masks, nodes, strict=True):
        record.cores = record.cores.model_copy(update={"cpus": cpus, "quota": quota})
        record.node_index = node
    assert resource_columns.usable(ranks) == usable


def test_usable_cores_of_further_nodes_count_for_a_command_over_several(
    ranks: list[RankRecord],
) -> None:
    """The record of a batch script has the CPUs of its first node, and the cores of all."""
    first = ranks[0]
    first.cores = first.cores.model_copy(update={"cpus": [0, 1], "usable": 4.0, "quota": None})
    assert resource_columns.usable([first]) == 4


def test_cores_that_were_not_usable_or_not_allocated_are_a_warning(paths: ResultPaths) -> None:
    confined, greedy = shaped(paths, cpus=2), shaped(paths)
    cores = make_results.rank_record(confined, 0).cores.model_copy(
        update={"cpus": [0], "usable": 1.0}
    )
    make_results.leave(paths, confined, cores=cores)
    spent = {"user_s": 1.4 * make_results.elapsed_s(greedy), "system_s": 0.0}
    cpu = make_results.rank_record(greedy, 0).cpu.model_copy(update=spent)
    make_results.leave(paths, greedy, cpu=cpu)
    found = collect(paths)
    (warning,) = row(found, confined)["warnings"]
    assert "1 of 2" in warning
    got = row(found, greedy)
    assert got["cpu_efficiency"] == pytest.approx(1.4, rel=1e-3), "never clipped"
    assert any("above 100" in warning for warning in got["warnings"])


def trained(ranks: list[RankRecord]) -> dict[str, Any]:
    return figures_trained(Run.model_validate(ranks[0].run), ranks, float(len(ranks)), None)


def test_what_a_step_gives_to_synchronising_is_a_mean_over_ranks(
    ranks: list[RankRecord], paths: ResultPaths
) -> None:
    parts = [record.training for record in ranks if record.training]
    figures, shares = trained(ranks), phase_shares(parts)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["sync_share"] > 0
    # All gradients of the model, float32, in each step.
    assert (figures["sync_over"], figures["sync_bytes_per_step"]) == ("gloo", 4 * 74_673)
    waited_s, steps = sum(p.phases.sync_s for p in parts), sum(p.counted_steps for p in parts)
    assert figures["sync_ms_per_step"] == pytest.approx(1000 * waited_s / steps)
    alone = trained([make_results.rank_record(shaped(paths), 0)])
    assert {alone[name] for name in SYNC} == {None}


def test_the_slowest_rank_says_how_fast_an_evaluation_is(ranks: list[RankRecord]) -> None:
    def got() -> list[float | None]:
        return [trained(ranks)[name] for name in EVALUATION]

    every = [epoch for record in ranks if record.training for epoch in record.training.epochs]
    assert ranks[1].training
    for number, epoch in enumerate(ranks[1].training.epochs):
        epoch.evaluation_s = 0.5 + number  # the other rank takes 0.4
    assert got() == [1.5, pytest.approx(65_400 / 1.5)]
    for epoch in every:
        epoch.evaluation_pairs = None
    assert got() == [1.5, None]
    for epoch in every:
        epoch.hr10, epoch.evaluation_s = None, 0.0
    assert got() == [None, None]


def test_epochs_keep_the_slowest_ranks_time(paths: ResultPaths) -> None:
    run = shaped(paths, tasks=2)
    make_results.leave(paths, run)
    path = paths.run(run.id).attempt(1).rank(1)
    late = schema.read_record(path, RankRecord)
    assert late.training
    late.training.epochs[0].training_s = 1000.0
    schema.write_record(path, late)
    epochs = collect(paths).epochs
    assert [epoch["epoch"] for epoch in epochs] == [0, 1, 2]
    assert epochs[0]["training_s"] == 1000


def test_core_means_are_weighted_by_the_windows_lengths(paths: ResultPaths) -> None:
    run = shaped(paths)
    make_results.leave(paths, run)
    series: dict[str, Any] = {"start_s": [0.0, 1.0], "length_s": [1.0, 3.0], "cpus": [5]}
    series |= {"busy": [[1.0, 0.6]], "ours": [[1.0, 0.2]]}
    node = make_results.node_record(run, windows=2).model_copy(update=series)
    schema.write_record(paths.run(run.id).attempt(1).node(0), node)
    (core,) = collect(paths).cores
    assert core["cpu"] == 5
    assert core["busy_mean"] == pytest.approx((1 * 1 + 3 * 0.6) / 4)
    assert core["ours_mean"] == pytest.approx((1 * 1 + 3 * 0.2) / 4)
    assert core["others_peak"] == pytest.approx(0.4)


def test_results_on_data_of_an_earlier_format_are_reported_as_before(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1, training={"max_steps": 100})
    make_results.complete(paths)
    before = collect(paths)
    make_results.of_format_3(tmp_path / "data")
    assert collect(paths) == before
    first = before.runs[0]
    assert first["data_title"].startswith("Frappe")
    assert (first["test_rows"], first["epoch_extrapolated"]) == (654, False)
    assert first["instances_per_epoch"] == 5 * make_results.TRAIN_ROWS


def test_a_manifest_that_cannot_be_read_is_named_once_and_one_that_is_gone_is_not(
    complete: ResultPaths,
) -> None:
    path = complete.folder.parent / "data/manifest.json"
    path.write_text("{")
    found = collect(complete)
    (got,) = found.skipped
    assert got.startswith(f"{path}: not a manifest of prepared data")
    assert {row["data_title"] for row in found.runs} == {None}
    path.unlink()
    assert collect(complete).skipped == []


def test_a_command_is_accounted_without_training(tmp_path: Path) -> None:
    paths = make_results.command_plan(tmp_path, ["python", "train.py"])
    make_results.complete(paths)
    (found,) = collect(paths).runs
    assert (found["workload"], found["command"]) == ("command", "python train.py")
    assert found["cpu_efficiency"] == pytest.approx(0.2)
    unknown = ("instances_per_s", "memory_efficiency", "mem_gb", "timeout_min")  # nobody asked
    assert {found[name] for name in unknown} == {None}


@pytest.mark.parametrize("outcome", ["failed", "stopped"])
def test_a_command_that_ended_badly_has_reported_all_and_one_that_runs_has_not(
    tmp_path: Path, outcome: str
) -> None:
    ended, running = (make_results.command_plan(tmp_path / name) for name in ("a", "b"))
    make_results.leave(ended, make_results.plan_of(ended).runs[0], outcome=outcome, exit_code=3)
    assert collect(ended).counts() == {outcome: 1}
    assert main(["collect", str(ended.folder)]) == 0
    claim_attempt(running.run(make_results.plan_of(running).runs[0].id), "run")
    assert main(["collect", str(running.folder)]) == 3


def test_the_exit_code_says_complete_from_incomplete_and_json_is_json(
    paths: ResultPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", str(paths.folder)]) == 3
    assert "6 planned" in capsys.readouterr().out
    make_results.complete(paths)
    assert main(["collect", str(paths.folder)]) == 0
    assert "6 completed" in capsys.readouterr().out
    assert main(["collect", str(paths.folder), "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert (got["complete"], got["states"], len(got["runs"])) == (True, {"completed": 6}, 6)


@pytest.mark.parametrize("content", [None, "{", '{"kind": "plan"}', "\xff"])
def test_a_folder_without_results_is_refused(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "plan.json").write_text(content, encoding="latin-1")
    else:
        with pytest.raises(UsageError, match="hpcncf submit"):
            collect(ResultPaths(tmp_path))
    assert main(["collect", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "tables").exists()


def test_an_unwritable_place_is_an_error(
    paths: ResultPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    paths.tables.write_text("a file where the folder should be")
    assert main(["collect", str(paths.folder)]) == 1
    assert "tables" in capsys.readouterr().err


def test_a_plan_of_nothing_is_complete(tmp_path: Path) -> None:
    assert collect(make_results.planned(tmp_path, Plan(job="empty", runs=[]))).complete


def test_whoever_looks_on_gets_the_records_of_each_run_that_left_some(paths: ResultPaths) -> None:
    plan = make_results.plan_of(paths)
    make_results.complete(paths, plan.runs[:4])
    seen: dict[str, tuple[int, int]] = {}
    collect(paths, lambda run, ranks, nodes: seen.update({run.id: (len(ranks), len(nodes))}))
    assert seen == {run.id: (run.resources.world_size, 1) for run in plan.runs[:4]}


def test_several_jobs_become_one_set_of_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(make_results.demo(tmp_path / name).folder) for name in "ab"]
    assert main(["collect", *folders]) == 2
    assert "-o DIR: is missing" in capsys.readouterr().err
    together = ResultPaths(tmp_path, tmp_path / "both")
    assert main(["collect", *folders, "-o", str(tmp_path / "both"), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["job"] == "demo, demo"
    rows = written(together, "runs")
    one = [row for folder in folders for row in collect(ResultPaths(Path(folder))).runs]
    assert [row["run_id"] for row in rows] == [row["run_id"] for row in one]
    assert list(rows[0])[:2] == ["job", "run_id"]
