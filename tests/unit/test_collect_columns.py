"""Columns of runs.csv: waits, GPUs, attempts, and a command's own figures."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import make_results
import pytest
from make_results import START

from hpcncf.collect import resource_columns
from hpcncf.collect.collect import collect
from hpcncf.collect.resource_columns import GPUS, WAITS, columns_gpus, columns_waits
from hpcncf.collect.training_columns import (
    Row,
    efficiency_in_training,
    figures_trained,
    memory_growth,
    others_cores,
)
from hpcncf.job.plan import Run
from hpcncf.job.spec import Resources
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import (
    Gpu,
    NodeRecord,
    ProgramProfile,
    Progress,
    RankRecord,
    Reported,
    write_record,
)
from hpcncf_analysis.diagnosis.from_records import evidence


def first_run(folder: Path, **resources: Any) -> Run:
    point = {f"resources.{name}": value for name, value in resources.items()}
    paths = make_results.demo(folder, points=[point], repeats=1)
    return make_results.plan_of(paths).runs[0]


def changed(part: Any, **changes: Any) -> Any:
    return part.model_copy(update=changes)


@pytest.fixture
def rank(tmp_path: Path) -> RankRecord:
    """2 cores from 12:00:00; steps from second 4 to second 10; 8 CPU seconds in all."""
    record = make_results.rank_record(first_run(tmp_path, cpus_per_task=2), 0)
    times = {"startup_s": 4.0, "training_s": 5.0, "evaluation_s": 0.5, "checkpoint_s": 0.5}
    record.training = changed(record.training, **times)
    record.cpu = changed(record.cpu, user_s=7.0, system_s=1.0)
    return record


PLAIN_RUN = Run.model_construct(id="a", resources=Resources(cpus_per_task=2), training=None)


def node(spent: list[float], started_after_s: float = 0.0) -> NodeRecord:
    """Windows of 2 s; `spent` CPU seconds in each, others on half a core in the first."""
    plain = make_results.node_record(PLAIN_RUN, windows=len(spent))
    began = (START + timedelta(seconds=started_after_s)).isoformat()
    times = [2.0 * number for number in range(len(spent))]
    others = [0.5, *[0.0] * (len(spent) - 1)]
    series = {"start_s": times, "length_s": [2.0] * len(spent), "tree_cpu_s": spent}
    return changed(plain, started_at=began, others_cores=others, **series)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("spent", "started_after_s", "training_s", "share"),
    [
        # Windows 4-6, 6-8, 8-10 s on 2 cores; the idle start is left out.
        ([1.0, 1.0, 1.0, 3.0, 2.0, 0.0], 0.0, 5.0, (1 + 3 + 2) / 12),
        # A series that began at second 1: whole windows inside 4-10 s are 5-7 and 7-9 s.
        ([3.0, 1.0, 2.0, 1.0, 1.0], 1.0, 5.0, (2 + 1) / 8),
        ([2.0, 2.0, 2.0, 2.0], 0.0, 0.1, None),  # shorter than a window
        ([1.0, 1.0, 1.0, 1.0, 2.0], 0.0, 5.0, None),  # of 8 CPU seconds it saw 6
    ],
)
def test_training_counts_the_windows_between_first_and_last_step(
    rank: RankRecord,
    spent: list[float],
    started_after_s: float,
    training_s: float,
    share: float | None,
) -> None:
    assert rank.training
    rank.training.training_s = training_s
    series = node(spent, started_after_s)
    assert efficiency_in_training([rank], [series]) == pytest.approx(share)
    assert efficiency_in_training([rank], []) is None
    rank.training = None
    assert efficiency_in_training([rank], [series]) is None


def test_memory_that_grows_is_that_of_the_node_where_it_grew_most() -> None:
    flat, steep = node([1.0] * 30), node([1.0] * 30)
    assert memory_growth([flat]) is None  # a record of before
    flat.anonymous_mib = [900.0] * 30
    assert memory_growth([flat]) is None
    steep.anonymous_mib = [500.0 + 10 * number for number in range(30)]
    assert memory_growth([flat, steep]) == pytest.approx(240, rel=0.05)


def test_others_are_averaged_over_time_and_summed_over_nodes() -> None:
    """Half a core in one of four windows, on each of two nodes."""
    series = node([0.0] * 4)
    assert others_cores([series, series]) == pytest.approx(2 * 0.5 / 4)
    assert others_cores([]) is None


@pytest.fixture
def ranks(tmp_path: Path) -> list[RankRecord]:
    """Two ranks on the first node, one on the second."""
    run = first_run(tmp_path, tasks_per_node=3)
    found = [make_results.rank_record(run, rank) for rank in range(3)]
    for record, node, throttled_s in zip(found, (0, 0, 1), (4.0, 5.0, 2.0), strict=True):
        record.node_index = node
        waits = {"throttled_s": throttled_s, "runnable_mean": 1.5, "runqueue_s": 3.0}
        record.cpu = changed(record.cpu, **waits)
        record.memory.major_faults, record.io.pressure_s = 7, throttled_s / 2
    return found


def test_threads_add_up_and_what_the_ranks_of_a_node_share_counts_once(
    ranks: list[RankRecord],
) -> None:
    row = columns_waits(ranks)
    assert (row["runnable_mean"], row["runqueue_s"], row["major_faults"]) == (4.5, 9.0, 21)
    assert row["throttled_s"] == 5.0 + 2.0
    assert row["io_pressure_s"] == 2.5
    assert row["blocked_s"] is None, "as of an older version"
    ranks[1].cpu.throttled_s = ranks[1].cpu.runqueue_s = None
    row = columns_waits(ranks)
    assert (row["throttled_s"], row["runqueue_s"], row["runnable_mean"]) == (None, None, 4.5)
    assert list(row) == list(WAITS)


BEGAN = make_results.START.timestamp()


def gpu(index: int, busy: list[float | None], joules: list[float | None]) -> Gpu:
    nothing: list[float | None] = [None] * len(busy)
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name="H200",
        memory_total_mib=1000.0,
        busy=busy,
        ours=nothing,
        memory_mib=[100.0 * (index + 1)] * len(busy),
        ours_memory_mib=nothing,
        energy_j=joules,
        sm_mhz=[1000.0 * (index + 1)] * len(busy),
        throttled={"power": [0.5] * len(busy), "thermal": nothing},
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = first_run(tmp_path)
    return changed(run, resources=changed(run.resources, gpus_per_node=2))  # type: ignore[no-any-return]


def gpu_node(run: Run, *seen: Gpu) -> NodeRecord:
    """Windows of 1 s, 1 s and 2 s."""
    record = make_results.node_record(run, windows=3)
    record.started_at = make_results.START.isoformat()
    record.start_s, record.length_s = [0.0, 1.0, 2.0], [1.0, 1.0, 2.0]
    record.gpus = list(seen)
    return record


def test_a_runs_gpus_add_up(run: Run) -> None:
    """Training is from second 1 to second 4: 500 J and 40 J in 3 s, an epoch takes 6 s."""
    first = gpu(0, [0.0, 1.0, 1.0], [60.0, 100.0, 400.0])
    second = gpu(1, [0.0, 0.0, 0.5], [10.0, 10.0, 30.0])
    row = columns_gpus(run, [gpu_node(run, first, second)], 1800.0, 6.0, (BEGAN + 1, BEGAN + 4))
    assert (row["gpus"], row["gpu_hours"], row["gpu_model"]) == (2, 1.0, "H200")
    assert row["gpu_busy"] == (1 + 2 + 1) / 8
    assert row["gpu_ours"] is None
    assert row["gpu_energy_j"] == 610.0
    assert row["gpu_j_per_epoch"] == pytest.approx((500 + 40) / 3 * 6)
    assert (row["gpu_throttled"], row["gpu_throttled_by"]) == (0.5, "power")
    assert (row["gpu_power_w"], row["gpu_sm_mhz"]) == (610 / 8, 1500.0)
    assert row["gpu_memory_peak_mib"] == 200.0


def test_runs_that_share_a_gpu_share_its_joules(run: Run) -> None:
    """As they do its hours: 100 W, an epoch of 6 s, three runs side by side."""
    shared = changed(run, resources=changed(run.resources, gpus_per_node=1, runs_per_gpu=3))
    seen = gpu_node(shared, gpu(0, [1.0] * 3, [100.0, 100.0, 200.0]))
    row = columns_gpus(shared, [seen], 1800.0, 6.0, (BEGAN, BEGAN + 9))
    assert (row["gpu_j_per_epoch"], row["gpu_energy_j"]) == (200.0, 400.0)


def test_what_nvml_did_not_see_throughout_is_not_known(run: Run) -> None:
    """And clocks that nothing held down have no reason; without NVML only hours are known."""
    partly = gpu(0, [0.5, None, 0.5], [1.0, None, 1.0])
    partly.throttled = {"power": [0.0] * 3, "thermal": [0.0] * 3}
    row = columns_gpus(run, [gpu_node(run, partly)], 10.0, 6.0, (BEGAN, BEGAN + 9))
    assert (row["gpu_energy_j"], row["gpu_j_per_epoch"], row["gpu_busy"]) == (None, None, 0.5)
    assert (row["gpu_throttled"], row["gpu_throttled_by"]) == (0.0, None)
    plain = make_results.node_record(run, windows=3)
    row = columns_gpus(run, [plain], 1800.0, 6.0, (BEGAN, BEGAN + 9))
    hours = {"gpus": 2, "gpu_hours": 1.0}
    assert row == dict.fromkeys(GPUS) | hours
    none = changed(run, resources=changed(run.resources, gpus_per_node=0))
    row = columns_gpus(none, [gpu_node(none, partly)], 10.0, None, (0.0, 0.0))
    assert row == dict.fromkeys(GPUS)


@pytest.fixture
def paths(tmp_path: Path) -> ResultPaths:
    return make_results.demo(tmp_path, repeats=1)


def leave_attempt(paths: ResultPaths, run: Run, number: int, outcome: str) -> None:
    attempt = paths.run(run.id).attempt(number)
    later = (START + timedelta(hours=number - 1)).isoformat()
    claim = make_results.claim(run).model_copy(update={"attempt": number, "claimed_at": later})
    write_record(attempt.claim, claim)
    if outcome == "killed":
        write_record(attempt.progress, progress(run, number))
        return
    error = None if outcome == "completed" else {"type": "Stopped", "message": "stopped by USR2"}
    changes = {"attempt": number, "outcome": outcome, "error": error}
    for rank in range(run.resources.world_size):
        record = make_results.rank_record(run, rank).model_copy(update=changes)
        write_record(attempt.rank(rank), record)


def progress(run: Run, number: int, **changes: Any) -> Progress:
    return Progress(
        run_id=run.id,
        attempt=number,
        updated_at=(START + timedelta(seconds=50)).isoformat(),
        elapsed_s=50.0,
        phase="training",
        epoch=0,
        epochs=3,
        step=10,
        steps_per_epoch=328,
        instances_per_s=1000.0,
        cpu_efficiency=0.5,
        **changes,
    )


def tried(paths: ResultPaths, run: Run, first: str) -> tuple[list[Row], Row]:
    """Rows of its attempts, and its own, once a second attempt was completed."""
    leave_attempt(paths, run, 1, first)
    leave_attempt(paths, run, 2, "completed")
    found = collect(paths)
    return found.attempts, next(row for row in found.runs if row["run_id"] == run.id)


def test_what_all_attempts_took_is_their_sum(paths: ResultPaths) -> None:
    run, other = make_results.plan_of(paths).runs[:2]
    (first, second), row = tried(paths, run, "stopped")
    assert [first["outcome"], second["outcome"]] == ["stopped", "completed"]
    assert first["error"] == "Stopped: stopped by USR2"
    assert row["attempts"] == 2
    assert row["elapsed_all_s"] == pytest.approx(2 * row["elapsed_s"])
    assert row["core_hours_all"] == pytest.approx(2 * row["core_hours"])
    assert row["cpu_efficiency_all"] == pytest.approx(row["cpu_efficiency"])
    never = next(row for row in collect(paths).runs if row["run_id"] == other.id)
    assert (never["attempts"], never["elapsed_all_s"], never["core_hours_all"]) == (0, None, None)


def test_a_killed_attempt_is_accounted_from_its_last_sign_of_life(paths: ResultPaths) -> None:
    run = make_results.plan_of(paths).runs[0]
    (killed, _), row = tried(paths, run, "killed")
    assert (killed["outcome"], killed["figures_from"]) == ("lost", "progress")
    assert (killed["elapsed_s"], killed["cpu_efficiency"]) == (50.0, 0.5)
    assert row["elapsed_all_s"] == pytest.approx(row["elapsed_s"] + 50)
    assert row["warnings"] == []
    paths.run(run.id).attempt(1).progress.unlink()
    (row,) = [row for row in collect(paths).runs if row["run_id"] == run.id]
    assert row["elapsed_all_s"] == pytest.approx(row["elapsed_s"])
    assert any("attempt 1 left no figures" in warning for warning in row["warnings"])


def test_of_a_killed_attempt_the_nodes_saw_every_rank(paths: ResultPaths) -> None:
    run = next(run for run in make_results.plan_of(paths).runs if run.resources.world_size > 1)
    tried(paths, run, "killed")
    attempt = paths.run(run.id).attempt(1)
    write_record(attempt.progress, progress(run, 1, cpu_s=7.0))
    assert collect(paths).attempts[0]["cpu_s"] == pytest.approx(7.0 * run.resources.world_size)
    node = make_results.node_record(run)
    write_record(attempt.node(0), node)
    assert collect(paths).attempts[0]["cpu_s"] == pytest.approx(sum(node.tree_cpu_s))


@pytest.fixture
def both(tmp_path: Path) -> list[RankRecord]:
    """Two ranks of one run."""
    run = first_run(tmp_path, tasks_per_node=2)
    return [make_results.rank_record(run, rank) for rank in range(2)]


def columns(both: list[RankRecord], *reported: Reported) -> dict[str, object]:
    for record, values in zip(both, reported, strict=True):
        record.reported = values
    run = Run.model_validate(both[0].run)
    return resource_columns.columns(run, both)


def test_phases_are_shares_over_all_ranks_and_the_slowest_rank_makes_the_speed(
    both: list[RankRecord],
) -> None:
    one: Reported = {"input_s": 3.0, "forward_s": 5.0, "instances": 600, "steps": 6}
    other: Reported = {"input_s": 3.0, "forward_s": 9.0, "instances": 600, "steps": 6}
    assert columns(both, one, other) == {
        "input_share": 6 / 20,
        "forward_share": 14 / 20,
        "instances_per_s": 1200 / 12,
        "metric_instances": 600,
        "metric_steps": 6,
    }


def test_what_ranks_report_is_taken_as_they_mean_it(both: list[RankRecord]) -> None:
    one: Reported = {"input_s": 1, "instances": 10, "instances_per_s": 7.5}
    assert columns(both, one, one)["instances_per_s"] == 7.5, "reported, not computed"
    found = columns(both, {"input_s": 1.0, "instances": 10}, {"input_s": 1.0})
    assert "instances_per_s" not in found, "one rank's instances are missing"
    assert found["input_share"] == 1.0
    own = {"evaluation_s": 4, "startup_s": 2.5}
    assert columns(both, own, {}) == own


@pytest.mark.parametrize("value", ["soon", True, -1.0])
def test_a_phase_that_is_no_time_is_a_metric_like_any_other(
    both: list[RankRecord], value: bool | float | str
) -> None:
    assert columns(both, {"sync_s": value}, {}) == {"metric_sync_s": value}


def test_warm_up_is_in_neither_speed_nor_epoch_time(tmp_path: Path) -> None:
    """Of 5.24 s, 3.7 s are warm-up: 272,000 instances/s make 1.54 s of 418,655 instances."""
    paths = make_results.demo(tmp_path, points=[make_results.POINTS[3]], repeats=1)
    run = make_results.plan_of(paths).runs[0]
    record = make_results.rank_record(run, 0)
    assert record.training
    epochs = [each.model_copy(update={"training_s": 5.24}) for each in record.training.epochs]
    changes = {"counted_instances": 272_000, "counted_s": 1.0, "epochs": epochs}
    record.training = record.training.model_copy(update=changes)
    figures = figures_trained(run, [record], 2.0, None)
    assert figures["instances_per_s"] == 272_000
    assert figures["seconds_per_epoch"] == pytest.approx(418_655 / 272_000)
    assert figures["core_s_per_epoch"] == pytest.approx(2 * 418_655 / 272_000)


def test_memory_grows_from_the_first_step_on(rank: RankRecord) -> None:
    """Of the run's time: a launcher, as torchrun, takes seconds before its ranks begin."""
    grown = node([1.0] * 60)
    grown.anonymous_mib = [min(500.0 + 10 * number, 1000.0) for number in range(60)]
    assert memory_growth([grown]) is not None
    profile = ProgramProfile.model_construct(steps=9, elapsed_s=25.0, startup_s=5.0)
    ended = {"started_at": "2026-01-05T10:00:00+00:00", "ended_at": "2026-01-05T10:02:00+00:00"}
    trained = rank.model_copy(update={**ended, "program": [profile]})
    assert evidence([trained], [grown]).memory_growth_mib is None
    early = profile.model_copy(update={"elapsed_s": 119.0})
    trained = rank.model_copy(update={**ended, "program": [early]})
    assert evidence([trained], [grown]).memory_growth_mib == memory_growth([grown])
