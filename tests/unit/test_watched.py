"""What the nodes' series tell: the training alone, and others on the same cores, by hand."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import make_results
import pytest

from hpcncf.collect.training_columns import (
    efficiency_in_training,
    figures_trained,
    memory_growth,
    others_cores,
)
from hpcncf.records.schema import NodeRecord, RankRecord


@pytest.fixture
def rank(tmp_path: Path) -> RankRecord:
    """2 cores from 12:00:00; steps from second 4 to second 10; 8 CPU seconds in all."""
    paths = make_results.demo(tmp_path, points=[{"resources.cpus_per_task": 2}], repeats=1)
    record = make_results.rank_record(make_results.plan_of(paths).runs[0], 0)
    assert record.training
    record.training.startup_s = 4.0
    record.training.training_s = 5.0
    record.training.evaluation_s = 0.5
    record.training.checkpoint_s = 0.5
    record.cpu.user_s, record.cpu.system_s = 7.0, 1.0
    return record


def node(spent: list[float], started_after_s: float = 0.0) -> NodeRecord:
    """Windows of 2 s; `spent` CPU seconds in each, others on half a core in the first."""
    idle = [0.0] * len(spent)
    return NodeRecord(
        run_id="a",
        attempt=1,
        node="node1",
        node_index=0,
        started_at=(make_results.START + timedelta(seconds=started_after_s)).isoformat(),
        start_s=[2.0 * number for number in range(len(spent))],
        length_s=[2.0] * len(spent),
        cpus=[0, 1],
        busy=[idle, idle],
        ours=[idle, idle],
        steal=idle,
        others_cores=[0.5, *idle[1:]],
        tree_cpu_s=spent,
        rss_mib=idle,
        memory_used_mib=idle,
        network_mib=idle,
        loopback_mib=idle,
        disk_mib=idle,
    )


def test_training_counts_the_windows_between_first_and_last_step(rank: RankRecord) -> None:
    """Windows 4-6, 6-8, 8-10 s: (1 + 3 + 2) / (6 s x 2 cores); the idle start is left out."""
    found = efficiency_in_training([rank], [node([1.0, 1.0, 1.0, 3.0, 2.0, 0.0])])
    assert found == pytest.approx(6 / 12)


def test_memory_that_grows_is_that_of_the_node_where_it_grew_most() -> None:
    flat, steep = node([1.0] * 30), node([1.0] * 30)
    assert memory_growth([flat]) is None  # a record of before
    flat.anonymous_mib = [900.0] * 30
    assert memory_growth([flat]) is None
    steep.anonymous_mib = [500.0 + 10 * number for number in range(30)]
    assert memory_growth([flat, steep]) == pytest.approx(240, rel=0.05)


def test_a_series_that_began_later_is_put_in_its_place(rank: RankRecord) -> None:
    """From second 1: whole windows inside 4-10 s are 5-7 and 7-9 s."""
    series = node([3.0, 1.0, 2.0, 1.0, 1.0], started_after_s=1.0)
    assert efficiency_in_training([rank], [series]) == pytest.approx((2 + 1) / 8)


def test_a_training_shorter_than_a_window_says_nothing(rank: RankRecord) -> None:
    assert rank.training
    rank.training.training_s = rank.training.evaluation_s = 0.1
    assert efficiency_in_training([rank], [node([2.0, 2.0, 2.0, 2.0])]) is None


def test_a_series_that_missed_some_ranks_says_nothing(rank: RankRecord) -> None:
    """Of 8 CPU seconds it saw 6, less than nine tenths."""
    assert efficiency_in_training([rank], [node([1.0, 1.0, 1.0, 1.0, 2.0])]) is None
    assert efficiency_in_training([rank], []) is None


def test_a_command_has_no_training(rank: RankRecord) -> None:
    alone = rank.model_copy(update={"training": None})
    assert efficiency_in_training([alone], [node([2.0, 2.0, 2.0, 2.0])]) is None


def test_others_are_averaged_over_time_and_summed_over_nodes() -> None:
    """Half a core in one of four windows, on each of two nodes."""
    series = node([0.0] * 4)
    assert others_cores([series, series]) == pytest.approx(2 * 0.5 / 4)
    assert others_cores([]) is None


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
