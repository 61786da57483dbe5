"""Every planned run stays, broken files are named, the same state gives the same bytes."""

from __future__ import annotations

import csv
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import make_results
import pytest

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

TABLES = ("runs", "attempts", "ranks", "cores", "epochs")


def bytes_of(paths: ResultPaths) -> dict[str, bytes]:
    return {name: (paths.tables / f"{name}.csv").read_bytes() for name in TABLES}


def written(paths: ResultPaths, name: str) -> list[dict[str, str]]:
    with (paths.tables / f"{name}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def shaped(paths: ResultPaths, tasks: int, cpus: int = 1) -> Run:
    """A planned run of that many ranks and cores each."""
    return next(
        run
        for run in make_results.plan_of(paths).runs
        if (run.resources.tasks_per_node, run.resources.cpus_per_task) == (tasks, cpus)
    )


def row(found: Collected, run: Run) -> dict[str, Any]:
    return next(row for row in found.runs if row["run_id"] == run.id)


def test_every_planned_run_has_a_row_whatever_became_of_it(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path)
    plan = make_results.plan_of(paths)
    make_results.complete(paths, plan.runs[:5])
    make_results.leave(
        paths,
        plan.runs[5],
        outcome="failed",
        exit_code=1,
        error={"type": "ValueError", "message": "no", "traceback": ""},
    )
    found = collect(paths)
    write(found, paths)
    assert [row["run_id"] for row in found.runs] == [run.id for run in plan.runs]
    assert found.counts() == {"completed": 5, "failed": 1, "planned": 12}
    assert "no" in row(found, plan.runs[5])["reason"]
    assert [row["run_id"] for row in written(paths, "runs")] == [run.id for run in plan.runs]


@pytest.mark.parametrize("table", COLUMNS)
def test_no_table_has_a_column_twice(table: str) -> None:
    assert len(set(COLUMNS[table])) == len(COLUMNS[table])


def test_nothing_changed_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path)
    make_results.complete(paths, make_results.plan_of(paths).runs[:7])
    write(collect(paths), paths)
    first = bytes_of(paths)
    write(collect(paths), paths)
    assert bytes_of(paths) == first
    make_results.complete(paths)
    write(collect(paths), paths)
    assert bytes_of(paths) != first


def test_retired_runs_are_kept_and_do_not_count(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    old = make_results.plan_of(paths)
    kept = old.model_copy(update={"runs": old.runs[:2]})
    schema.write_text(paths.plan, merge_plans(old, kept).model_dump_json())
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
    tmp_path: Path, name: str, text: str
) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    make_results.complete(paths)
    victim = shaped(paths, tasks=1)
    (paths.run(victim.id).attempt(1).folder / name).write_text(text)
    found = collect(paths)
    assert len(found.skipped) == 1
    assert name in found.skipped[0]
    assert victim.id in found.skipped[0]
    whole = [row for row in found.runs if row["state"] == "completed"]
    assert len(whole) == (5 if name == "rank-0.json" else 6)
    assert all(row["cpu_efficiency"] for row in whole)


def test_another_runs_record_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    make_results.complete(paths)
    one, other = make_results.plan_of(paths).runs[:2]
    stranger = paths.run(other.id).attempt(1)
    for name in ("node-0.json", "rank-0.json"):
        target = paths.run(one.id).attempt(1).folder / name
        target.write_bytes((stranger.folder / name).read_bytes())
    found = collect(paths)
    assert sum(other.id in reason for reason in found.skipped) == 2
    assert row(found, one)["cpu_efficiency"] is None
    assert row(found, one)["state"] != "completed"


def test_a_folder_that_the_plan_does_not_know_is_named(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    (paths.folder / "runs" / "backup of monday").mkdir(parents=True)
    assert any("backup of monday" in reason for reason in collect(paths).skipped)


def test_half_of_a_runs_ranks_give_no_figures(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    make_results.complete(paths)
    run = shaped(paths, tasks=2)
    paths.run(run.id).attempt(1).rank(1).unlink()
    found = collect(paths)
    assert row(found, run)["state"] != "completed"
    assert row(found, run)["instances_per_s"] is None
    assert row(found, run)["cores_allocated"] == 2
    assert sum(row["run_id"] == run.id for row in found.ranks) == 1


def test_one_rank_is_accounted_as_seff_does(tmp_path: Path) -> None:
    """2 cores for 100 s, 90 s + 12 s of CPU time: 102 / 200."""
    paths = make_results.demo(tmp_path, repeats=1)
    run = shaped(paths, tasks=1, cpus=2)
    record = make_results.rank_record(run, 0)
    ended = make_results.START + timedelta(seconds=100)
    make_results.leave(
        paths,
        run,
        ended_at=ended.isoformat(),
        elapsed_s=100.0,
        cpu=record.cpu.model_copy(update={"user_s": 90.0, "system_s": 12.0}),
    )
    found = row(collect(paths), run)
    assert found["elapsed_s"] == 100
    assert found["cpu_efficiency"] == pytest.approx(0.51)
    assert found["cores_used"] == pytest.approx(1.02)
    assert found["core_hours"] == pytest.approx(2 * 100 / 3600)
    assert found["core_hours_wasted"] == pytest.approx((200 - 102) / 3600)
    assert found["time_efficiency"] == pytest.approx(100 / 1800)
    assert found["memory_efficiency"] == pytest.approx(400 / 4096)


def two_ranks(tmp_path: Path) -> tuple[Run, list[RankRecord]]:
    run = shaped(make_results.demo(tmp_path, repeats=1), tasks=2)
    return run, [make_results.rank_record(run, rank) for rank in (0, 1)]


def test_ranks_that_overlap_are_timed_from_first_start_to_last_end(tmp_path: Path) -> None:
    _, (first, second) = two_ranks(tmp_path)
    start = make_results.START
    first.started_at, first.ended_at = start.isoformat(), (start + timedelta(seconds=9)).isoformat()
    second.started_at = (start + timedelta(seconds=1)).isoformat()
    second.ended_at = (start + timedelta(seconds=11)).isoformat()
    assert resource_columns.elapsed([first, second]) == 11


def test_speed_is_all_ranks_instances_over_the_slowest_ranks_time(tmp_path: Path) -> None:
    """(600 + 400) / max(2, 4); an epoch at that speed, on two cores."""
    run, ranks = two_ranks(tmp_path)
    for record, instances, seconds in zip(ranks, (600, 400), (2.0, 4.0), strict=True):
        assert record.training
        record.training.counted_instances = instances
        record.training.counted_s = seconds
    found = resource_columns.measure(run, ranks, None)
    assert found["instances_per_s"] == 250
    assert found["seconds_per_epoch"] == found["instances_per_epoch"] / 250
    assert found["core_s_per_epoch"] == 2 * found["seconds_per_epoch"]
    assert not found["epoch_extrapolated"]


def test_an_epoch_cut_short_is_extrapolated_and_says_so(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1, training={"max_steps": 5})
    run = shaped(paths, tasks=1)
    record = make_results.rank_record(run, 0)
    assert record.training
    record.training.counted_instances, record.training.counted_s = 1000, 2.0
    found = resource_columns.measure(run, [record], epoch_instances=50_000)
    assert found["seconds_per_epoch"] == 100
    assert found["epoch_extrapolated"]
    assert resource_columns.measure(run, [record], None)["seconds_per_epoch"] is None


def test_whole_epochs_before_the_cut_are_measured_not_extrapolated(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1, training={"max_steps": 400})
    run = shaped(paths, tasks=1)
    record = make_results.rank_record(run, 0)
    assert record.training
    first, *rest = record.training.epochs
    for epoch in rest:
        epoch.instances = 10
    found = resource_columns.measure(run, [record], epoch_instances=first.instances)
    assert found["seconds_per_epoch"] == first.instances / found["instances_per_s"]
    assert (found["instances_per_epoch"], found["epoch_extrapolated"]) == (first.instances, False)
    assert resource_columns.measure(run, [record], None)["instances_per_epoch"] is None, (
        "only a part is known"
    )


def test_a_resumed_runs_epoch_is_that_of_the_attempt_that_has_the_other_figures(
    tmp_path: Path,
) -> None:
    run, ranks = two_ranks(tmp_path)
    for record in ranks:
        assert record.training
        record.training.resumed_epoch = 1
        record.training.epochs[0].instances = 7
    own = ranks[0].training
    assert own
    found = resource_columns.measure(run, ranks, None)
    assert found["instances_per_epoch"] == own.epochs[1].instances


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
    tmp_path: Path, masks: Any, nodes: Any, quota: float | None, usable: float
) -> None:
    _, ranks = two_ranks(tmp_path)
    for record, cpus, node in zip(ranks, masks, nodes, strict=True):
        record.cores = record.cores.model_copy(update={"cpus": cpus, "quota": quota})
        record.node_index = node
    assert resource_columns.usable(ranks) == usable


def test_fewer_usable_than_allocated_cores_is_a_warning(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    run = shaped(paths, tasks=1, cpus=2)
    cores = make_results.rank_record(run, 0).cores.model_copy(update={"cpus": [0]})
    make_results.leave(paths, run, cores=cores)
    (warning,) = row(collect(paths), run)["warnings"]
    assert "1 of 2" in warning


def test_an_efficiency_above_one_is_kept_and_flagged(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    run = shaped(paths, tasks=1)
    cpu = make_results.rank_record(run, 0).cpu.model_copy(
        update={"user_s": 1.4 * make_results.elapsed_s(run), "system_s": 0.0}
    )
    make_results.leave(paths, run, cpu=cpu)
    found = row(collect(paths), run)
    assert found["cpu_efficiency"] == pytest.approx(1.4, rel=1e-3)
    assert any("above 100" in warning for warning in found["warnings"])


def test_phase_shares_add_up_to_one(tmp_path: Path) -> None:
    _, ranks = two_ranks(tmp_path)
    shares = phase_shares([record.training for record in ranks if record.training])
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["sync_share"] > 0


def test_what_a_step_gives_to_synchronising_is_a_mean_over_ranks(tmp_path: Path) -> None:
    run, ranks = two_ranks(tmp_path)
    got = [record.training for record in ranks if record.training]
    figures = figures_trained(run, ranks, 2.0, None)
    # All gradients of the model, float32, in each step.
    assert (figures["sync_over"], figures["sync_bytes_per_step"]) == ("gloo", 4 * 74_673)
    waited_s, steps = (
        sum(part.phases.sync_s for part in got),
        sum(part.counted_steps for part in got),
    )
    assert figures["sync_ms_per_step"] == pytest.approx(1000 * waited_s / steps)


def test_the_slowest_rank_says_how_fast_an_evaluation_is(tmp_path: Path) -> None:
    run, ranks = two_ranks(tmp_path)
    assert ranks[1].training
    for number, epoch in enumerate(ranks[1].training.epochs):
        epoch.evaluation_s = 0.5 + number  # the other rank takes 0.4
    got = figures_trained(run, ranks, 2.0, None)
    assert got["seconds_per_evaluation"] == 1.5
    assert got["evaluation_pairs_per_s"] == pytest.approx(65_400 / 1.5)


def test_of_records_that_say_no_pairs_and_of_no_evaluation_there_is_no_speed(
    tmp_path: Path,
) -> None:
    run, ranks = two_ranks(tmp_path)
    every = [epoch for rank in ranks if rank.training for epoch in rank.training.epochs]
    for epoch in every:
        epoch.evaluation_pairs = None
    got = figures_trained(run, ranks, 2.0, None)
    assert (got["seconds_per_evaluation"], got["evaluation_pairs_per_s"]) == (0.4, None)
    for epoch in every:
        epoch.hr10, epoch.evaluation_s = None, 0.0
    got = figures_trained(run, ranks, 2.0, None)
    assert {got[name] for name in EVALUATION} == {None}


def test_one_rank_gives_nothing_to_synchronising(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    run = shaped(paths, tasks=1)
    figures = figures_trained(run, [make_results.rank_record(run, 0)], 1.0, None)
    assert {figures[name] for name in SYNC} == {None}


def test_epochs_keep_the_slowest_ranks_time(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    run = shaped(paths, tasks=2)
    make_results.leave(paths, run)
    path = paths.run(run.id).attempt(1).rank(1)
    late = schema.read_record(path, RankRecord)
    assert late.training
    late.training.epochs[0].training_s = 1000.0
    schema.write_record(path, late)
    epochs = [row for row in collect(paths).epochs if row["run_id"] == run.id]
    assert [epoch["epoch"] for epoch in epochs] == [0, 1, 2]
    assert epochs[0]["training_s"] == 1000


def test_core_means_are_weighted_by_the_windows_lengths(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    run = shaped(paths, tasks=1)
    make_results.leave(paths, run)
    node = make_results.node_record(run, windows=2).model_copy(
        update={
            "start_s": [0.0, 1.0],
            "length_s": [1.0, 3.0],
            "cpus": [5],
            "busy": [[1.0, 0.6]],
            "ours": [[1.0, 0.2]],
        }
    )
    schema.write_record(paths.run(run.id).attempt(1).node(0), node)
    (core,) = collect(paths).cores
    assert core["cpu"] == 5
    assert core["busy_mean"] == pytest.approx((1 * 1 + 3 * 0.6) / 4)
    assert core["ours_mean"] == pytest.approx((1 * 1 + 3 * 0.2) / 4)
    assert core["others_peak"] == pytest.approx(0.4)


def test_the_varied_settings_are_columns_of_their_own(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    make_results.complete(paths)
    write(collect(paths), paths)
    run = shaped(paths, tasks=2)
    (got,) = [row for row in written(paths, "runs") if row["run_id"] == run.id]
    assert (got["tasks_per_node"], got["world_size"], got["threads"]) == ("2", "2", "1")
    assert (got["state"], got["batch"], got["retired"]) == ("completed", "256", "false")
    assert got["data_title"].startswith("Frappe")


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
    tmp_path: Path,
) -> None:
    paths = make_results.demo(tmp_path)
    make_results.complete(paths)
    path = tmp_path / "data/manifest.json"
    path.write_text("{")
    found = collect(paths)
    (got,) = found.skipped
    assert got.startswith(f"{path}: not a manifest of prepared data")
    assert {row["data_title"] for row in found.runs} == {None}
    path.unlink()
    assert collect(paths).skipped == []


def test_a_command_is_accounted_without_training(tmp_path: Path) -> None:
    paths = make_results.command_plan(tmp_path, ["python", "train.py"])
    make_results.complete(paths)
    (found,) = collect(paths).runs
    assert (found["workload"], found["command"]) == ("command", "python train.py")
    assert found["cpu_efficiency"] == pytest.approx(0.2)
    assert found["instances_per_s"] is None
    assert found["memory_efficiency"] is None, "nobody asked for memory"
    assert (found["mem_gb"], found["timeout_min"]) == (None, None), "nor for a time limit"


def test_a_cell_is_plain_text() -> None:
    table = [{"a": None, "b": ["x", "y"], "c": True, "d": {"k": 1}, "e": 0.1, "z": 1}]
    assert as_csv(table, ["a", "b", "c", "d", "e"]) == (
        'a,b,c,d,e,z\n,x; y,true,"{""k"": 1}",0.1,1\n'
    )


def test_a_notebook_gets_the_tables_as_frames(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=2)
    make_results.complete(paths, make_results.plan_of(paths).runs[:7])
    found = collect(paths)
    frames = found.frames()
    assert list(frames) == list(TABLES)
    for name in TABLES:
        assert list(frames[name].columns) == COLUMNS[name]
    runs = frames["runs"]
    assert len(runs) == 12
    assert runs["instances_per_s"].count() == 7
    assert runs["max_steps"].dtype == float, "a column that nobody filled is no column of objects"
    assert set(runs["loader"]) == {"per_sample", "vectorized"}


def test_the_exit_code_says_complete_from_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    assert main(["collect", str(paths.folder)]) == 3
    assert "6 planned" in capsys.readouterr().out
    make_results.complete(paths)
    assert main(["collect", str(paths.folder)]) == 0
    assert "6 completed" in capsys.readouterr().out


@pytest.mark.parametrize("outcome", ["failed", "stopped"])
def test_a_command_that_ended_badly_has_reported_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], outcome: str
) -> None:
    paths = make_results.command_plan(tmp_path)
    make_results.leave(paths, make_results.plan_of(paths).runs[0], outcome=outcome, exit_code=3)
    assert main(["collect", str(paths.folder)]) == 0
    assert f"1 {outcome}" in capsys.readouterr().out


def test_a_command_that_still_runs_has_not(tmp_path: Path) -> None:
    paths = make_results.command_plan(tmp_path)
    claim_attempt(paths.run(make_results.plan_of(paths).runs[0].id), "run")
    assert main(["collect", str(paths.folder)]) == 3


def test_json_output_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    make_results.complete(paths)
    main(["collect", str(paths.folder), "--json"])
    got = json.loads(capsys.readouterr().out)
    assert got["complete"]
    assert got["states"] == {"completed": 6}
    assert len(got["runs"]) == 6


@pytest.mark.parametrize("content", [None, "{", '{"kind": "plan"}', "\xff"])
def test_a_folder_without_results_is_refused(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "plan.json").write_text(content, encoding="latin-1")
    assert main(["collect", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "tables").exists()


def test_an_unwritable_place_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    paths.tables.write_text("a file where the folder should be")
    assert main(["collect", str(paths.folder)]) == 1
    assert "tables" in capsys.readouterr().err


def test_a_plan_of_nothing_is_complete(tmp_path: Path) -> None:
    paths = make_results.planned(tmp_path, Plan(job="empty", runs=[]))
    assert collect(paths).complete


def test_read_plan_names_what_makes_a_results_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hpcncf submit"):
        collect(ResultPaths(tmp_path))


def test_a_node_whose_series_differ_in_length_is_named_and_skipped(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
    run = shaped(paths, tasks=1)
    make_results.leave(paths, run)
    node = make_results.node_record(run, windows=3).model_copy(update={"steal": [0.0]})
    schema.write_record(paths.run(run.id).attempt(1).node(0), node)
    found = collect(paths)
    assert found.cores == []
    assert any("node-0.json" in got and "the 3 windows of start_s" in got for got in found.skipped)


def test_whoever_looks_on_gets_the_records_of_each_run_that_left_some(tmp_path: Path) -> None:
    paths = make_results.demo(tmp_path, repeats=1)
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
