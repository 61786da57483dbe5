"""Who beats whom in time and cost, and the three worth asking for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_configurations import configuration

from hpcncf_analysis.advice.pareto import (
    MIN_CORE_YIELD,
    Choices,
    PricedConfiguration,
    build_choices,
)


def choices(*configurations: object) -> Choices:
    found = build_choices(list(configurations))  # type: ignore[arg-type]
    assert found is not None
    return found


def beaten(found: Choices) -> dict[str, str | None]:
    return {each.label: each.beaten_by for each in found.standings}


def test_the_front_by_hand() -> None:
    """Core-seconds an epoch: 10 on one core, 12 on two, 32 on four; the slow one takes 20."""
    found = choices(
        configuration("one", seconds=10.0),
        configuration("two", seconds=6.0, cores=2),
        configuration("four", seconds=8.0, cores=4),
        configuration("slow", seconds=20.0),
    )
    assert beaten(found) == {"two": None, "four": "two", "one": None, "slow": "one"}
    assert [each.label for each in found.front] == ["two", "one"]
    assert [each.label for each in found.dominated] == ["four", "slow"]
    assert (found.fastest.label, found.cheapest.label) == ("two", "one")
    assert found.fastest.core_h == pytest.approx(12 / 3600)
    assert found.unit == "epoch"


@pytest.mark.parametrize(("seconds", "knee"), [(7.1, "two"), (7.2, "one")])
def test_the_knee_is_the_fastest_that_costs_at_most_a_share_more(seconds: float, knee: str) -> None:
    """10 core-seconds at least: 14.2 of them are within 10 / 0.7 = 14.29, and 14.4 are not."""
    two = configuration("two", seconds=seconds, cores=2)
    assert choices(configuration("one", seconds=10.0), two).knee.label == knee


def test_gpu_hours_are_dearer_than_any_core_hours() -> None:
    """The GPU takes 1 s on 8 cores; the CPUs 100 s on 2: neither beats the other."""
    found = choices(
        configuration("gpu", seconds=1.0, cores=8, gpus_per_node=1),
        configuration("cpu", seconds=100.0, cores=2),
        configuration("gpus", seconds=0.9, cores=8, gpus_per_node=4),
    )
    assert beaten(found) == {"gpus": None, "gpu": None, "cpu": None}
    assert found.cheapest.label == "cpu"
    assert found.knee.label == "gpu", "four GPUs for a tenth less time are not worth it"
    assert found.fastest.gpu_h == pytest.approx(3.6 / 3600)


def test_two_that_are_equal_beat_each_other_not() -> None:
    assert beaten(choices(configuration("a"), configuration("b"))) == {"a": None, "b": None}


def test_what_learns_too_little_is_not_chosen() -> None:
    found = choices(configuration("good"), configuration("quick", seconds=1.0, hr10=0.5))
    assert [each.label for each in found.standings] == ["good"]
    assert [one.label for one in found.unsound] == ["quick"]


@pytest.mark.parametrize(
    ("changes", "unit", "seconds"),
    [
        ({"seconds_per_epoch": None}, "million instances", 10_000.0),
        ({"data_key": "other"}, "million instances", 10_000.0),
        (
            {
                "workload": "command",
                "instances_per_s": None,
                "seconds_per_epoch": None,
                "elapsed_s": 40.0,
            },
            "run",
            40.0,
        ),
    ],
)
def test_where_an_epoch_is_no_measure_another_is_taken(
    changes: dict[str, object], unit: str, seconds: float
) -> None:
    """1,000 instances in 10 s are a million in 10,000 s."""
    same = {} if "data_key" in changes else changes
    found = choices(configuration("a", **changes), configuration("b", **same))
    assert found.unit == unit
    assert found.fastest.seconds == pytest.approx(seconds)


def test_nothing_measured_leaves_nothing_to_choose() -> None:
    assert build_choices([]) is None
    assert build_choices([configuration("a", instances_per_s=None, seconds_per_epoch=None)]) is None


def better(one: PricedConfiguration, other: PricedConfiguration) -> bool:
    no_worse = one.seconds <= other.seconds and one.cost <= other.cost
    return no_worse and (one.seconds < other.seconds or one.cost < other.cost)


sizes = st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0, 5.0]), st.integers(1, 4)), min_size=1)


@given(sizes)
def test_the_front_is_whoever_nobody_beats(sizes: list[tuple[float, int]]) -> None:
    found = choices(
        *(
            configuration(str(number), seconds=seconds, cores=cores)
            for number, (seconds, cores) in enumerate(sizes)
        )
    )
    by_label = {each.label: each for each in found.standings}
    for each in found.standings:
        beats = [other for other in found.standings if better(other, each)]
        assert (each.beaten_by is None) == (not beats)
        assert each.beaten_by is None or better(by_label[each.beaten_by], each)
    assert found.knee.seconds <= found.cheapest.seconds
    assert MIN_CORE_YIELD * found.knee.core_h <= found.cheapest.core_h
    assert found.knee in found.front or any(each.cost == found.knee.cost for each in found.front)
