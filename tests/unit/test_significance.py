"""Whether a candidate is faster: by hand, by counting, and alike through all four doors."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_configurations import configuration, row

from hpcncf.tune.trials import Figure, Point, compare_figures
from hpcncf_analysis import compare
from hpcncf_analysis.advice.judge import assess_confidence, judge
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.remedy_effects import measure_effects
from hpcncf_analysis.significance import (
    Verdict,
    _orders_with_at_most,
    compare_pairs,
    compare_repeats,
    compare_times,
)

SPEEDS = st.lists(st.integers(10, 40).map(float), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([1, 2, 3], [4, 5, 6], "faster"),
        ([4, 5, 6], [1, 2, 3], "slower"),
        ([1.0, 1.1, 1.3], [1.05, 1.2, 1.25], "no significant difference"),
        ([1], [2], "too few repeats"),
        ([1], [2, 3, 4], "too few repeats"),
        ([1, 2], [8, 9], "too few repeats"),
        ([1, 2], [8, 9, 10, 11, 12], "faster"),
    ],
)
def test_verdict_of_repeats(a: list[float], b: list[float], verdict: str) -> None:
    assert compare_repeats(a, b).verdict == verdict


def test_ratio_interval_and_p_by_hand() -> None:
    """Medians 2 and 5; ratios from 4/3 to 6/1; 2 of the 20 orders are as far apart."""
    found = compare_repeats([1, 2, 3], [4, 5, 6])
    assert (found.value, found.low, found.high) == pytest.approx((2.5, 4 / 3, 6))
    assert (found.p, found.confidence) == pytest.approx((0.1, 0.9))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (3, 3), (4, 2), (5, 5)])
def test_null_distribution_is_that_of_all_orders(n: int, m: int) -> None:
    counts = [0] * (n * m + 1)
    for chosen in combinations(range(n + m), n):
        others = set(range(n + m)).difference(chosen)
        counts[sum(one > other for one in chosen for other in others)] += 1
    assert list(_orders_with_at_most(((n, m),))) == np.cumsum(counts).tolist()


def test_pairs_together_are_the_geometric_mean_and_show_more_than_each() -> None:
    """Twice and half as fast is no change; twice and eight times is four times."""
    slow, fast = [1.0, 1.01, 1.02], [2.0, 2.02, 2.04]
    unlike = compare_pairs([(slow, fast), (fast, slow)])
    assert (unlike.value, unlike.verdict) == (pytest.approx(1), Verdict.ALIKE)
    found = compare_pairs([(slow, fast), (slow, [4 * each for each in fast])])
    assert (found.value, found.verdict) == (pytest.approx(4), Verdict.FASTER)
    assert found.p == pytest.approx(2 / 400)
    pair = ([1.0, 1.01], [0.5, 0.51])  # alone 6 orders, two of them 36
    assert compare_repeats(*pair).verdict is Verdict.TOO_FEW
    assert compare_pairs([pair, pair]).verdict is Verdict.SLOWER


@pytest.mark.parametrize("sizes", [(3, 3), (4, 5), (60, 50)])
def test_equal_speeds_differ_no_more_often_than_promised(sizes: tuple[int, int]) -> None:
    """One in ten; 400 pairs of one distribution, three standard deviations of leeway."""
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        a, b = (random.lognormal(sigma=0.1, size=size).tolist() for size in sizes)
        wrong += compare_repeats(a, b).verdict.is_difference
    assert 0 < wrong <= 40 + 3 * 6


def test_one_disturbed_repeat_of_six_does_not_decide() -> None:
    steady = [100.0, 101.0, 102.0, 103.0, 104.0, 105.0]
    assert compare_repeats(steady, [*(1.1 * each for each in steady[:5]), 40.0]).verdict == "faster"


@given(SPEEDS, SPEEDS)
def test_ratio_lies_in_its_interval_and_turns_over_with_the_sides(
    a: list[float], b: list[float]
) -> None:
    found, other = compare_repeats(a, b), compare_repeats(b, a)
    assert other.value == pytest.approx(1 / found.value)
    assert compare_times(b, a) == found
    opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    assert other.verdict is opposite.get(found.verdict, found.verdict)
    if found.low is not None and found.high is not None:
        assert found.low <= found.value * (1 + 1e-9)
        assert found.value <= found.high * (1 + 1e-9)
        assert found.verdict.is_difference == (
            found.verdict is not Verdict.TOO_FEW and not found.low <= 1 <= found.high
        )


def repeated(name: str, speeds: list[float], **settings: Any) -> Configuration:
    """Runs of one epoch that takes all of their time."""
    times = [1e5 / speed for speed in speeds]
    return configuration(
        name,
        [
            row(
                **{"run_id": f"{name}{at}", "instances_per_s": speed, "elapsed_s": seconds},
                **{"training_s": seconds, "seconds_per_epoch": seconds, "epochs": 1},
                **{"node": "n1", "remedies": None, "config": name, "baseline": name == "before"},
                **{"evaluation_s": 0.0, "seconds_per_evaluation": 0.0, "max_steps": None},
                **settings,
            )
            for at, (speed, seconds) in enumerate(zip(speeds, times, strict=True))
        ],
    )


def compared_verdict(baseline: Configuration, candidate: Configuration) -> Verdict:
    a, b = (compare.Side(one.label, one.rows, [], 0) for one in (baseline, candidate))
    return compare.compare(a, b).pairs[0].ratio.verdict


def remedy_verdict(baseline: Configuration, candidate: Configuration) -> Verdict:
    return measure_effects([baseline, candidate])[0].gain.verdict


def advised_verdict(baseline: Configuration, candidate: Configuration) -> Verdict | None:
    table = judge([baseline, candidate])
    assert table
    chosen = next(each for each in table.rows if each.key == candidate.key)
    return assess_confidence(chosen, "fastest", table).verdict


def tuned_verdict(baseline: Configuration, candidate: Configuration) -> Verdict:
    before, after = (
        Figure(Point(at, one.label, 1), tuple(each["elapsed_s"] for each in one.rows), 1.0, True)
        for at, one in enumerate((baseline, candidate))
    )
    return compare_figures(before, after, "fastest").verdict


@given(SPEEDS, SPEEDS)
def test_all_four_doors_give_the_same_verdict(a: list[float], b: list[float]) -> None:
    baseline = repeated("before", a, varied={"training.adam": "foreach"})
    candidate = repeated("after", b, varied={"training.adam": "fused"})
    expected = compare_repeats(a, b).verdict
    doors = (compared_verdict, remedy_verdict, advised_verdict, tuned_verdict)
    assert [door(baseline, candidate) for door in doors] == [expected] * 4
