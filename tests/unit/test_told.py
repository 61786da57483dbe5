"""A command's own words as columns: its phases become shares and a speed, by hand."""

from __future__ import annotations

from pathlib import Path

import make_results
import pytest

from hpcncf.collect import resource_columns
from hpcncf.job.plan import Run
from hpcncf.records.schema import RankRecord, Reported


@pytest.fixture
def ranks(tmp_path: Path) -> list[RankRecord]:
    """Two ranks of one run."""
    paths = make_results.demo(tmp_path, points=[{"resources.tasks_per_node": 2}], repeats=1)
    run = make_results.plan_of(paths).runs[0]
    return [make_results.rank_record(run, rank) for rank in range(2)]


def columns(ranks: list[RankRecord], *reported: Reported) -> dict[str, object]:
    for record, values in zip(ranks, reported, strict=True):
        record.reported = values
    run = Run.model_validate(ranks[0].run)
    return resource_columns.columns(run, ranks)


def test_phases_are_shares_over_all_ranks_and_the_slowest_rank_makes_the_speed(
    ranks: list[RankRecord],
) -> None:
    one: Reported = {"input_s": 3.0, "forward_s": 5.0, "instances": 600, "steps": 6}
    other: Reported = {"input_s": 3.0, "forward_s": 9.0, "instances": 600, "steps": 6}
    assert columns(ranks, one, other) == {
        "input_share": 6 / 20,
        "forward_share": 14 / 20,
        "instances_per_s": 1200 / 12,
        "metric_instances": 600,
        "metric_steps": 6,
    }


def test_a_speed_that_was_reported_is_not_computed(ranks: list[RankRecord]) -> None:
    one: Reported = {"input_s": 1, "instances": 10, "instances_per_s": 7.5}
    assert columns(ranks, one, one)["instances_per_s"] == 7.5


def test_without_every_ranks_instances_there_is_no_speed(ranks: list[RankRecord]) -> None:
    found = columns(ranks, {"input_s": 1.0, "instances": 10}, {"input_s": 1.0})
    assert "instances_per_s" not in found
    assert found["input_share"] == 1.0


def test_evaluation_and_startup_stand_in_their_own_columns(ranks: list[RankRecord]) -> None:
    assert columns(ranks, {"evaluation_s": 4, "startup_s": 2.5}, {}) == {
        "evaluation_s": 4,
        "startup_s": 2.5,
    }


@pytest.mark.parametrize("value", ["soon", True, -1.0])
def test_a_phase_that_is_no_time_is_a_metric_like_any_other(
    ranks: list[RankRecord], value: bool | float | str
) -> None:
    assert columns(ranks, {"sync_s": value}, {}) == {"metric_sync_s": value}
