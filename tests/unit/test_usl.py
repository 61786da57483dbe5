"""Fitted laws, against values worked by hand and generated speeds of a law that is known."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf_analysis.usl import (
    Law,
    OutOfReach,
    Refusal,
    fit_law,
    range_confidence,
    relative_speed,
)

SIZES = [1.0, 2.0, 4.0, 8.0]
# From one core that serves all, over a law of both losses, to one that costs more than it gives.
SHARES = st.floats(0, 0.9)
CROSSTALK = st.floats(0, 0.05)


def generated(
    sigma: float,
    kappa: float,
    noise: float = 0.0,
    repeats: int = 1,
    seed: int = 0,
    sizes: list[float] = SIZES,
) -> list[list[float]]:
    """Speeds made from a known law, 1,000 instances/s at size 1: nobody measured them."""
    random = np.random.default_rng(seed)
    spread = [np.exp(noise * random.standard_normal(repeats)) for _ in sizes]
    return [
        (1000 * relative_speed(size, sigma, kappa) * factors).tolist()
        for size, factors in zip(sizes, spread, strict=True)
    ]


def fitted(*arguments: Any, sizes: list[float] = SIZES, **changes: Any) -> Law:
    found = fit_law(sizes, *arguments, **changes)
    assert isinstance(found, Law)
    return found


def test_amdahls_law_by_hand() -> None:
    """A tenth is serial: 8 cores give 1 / (0.1 + 0.9 / 8) = 4.70 times the speed."""
    found = fitted([[100.0], [100 / 0.55], [100 / 0.325], [100 / 0.2125]])
    assert (found.sigma, found.rate_of_one) == pytest.approx((0.1, 100))
    assert (found.kappa, found.knee) == (0, None)
    assert found.rate(8) / found.rate(1) == pytest.approx(4.7058824)
    assert found.rate(16) == pytest.approx(100 / (0.1 + 0.9 / 16))


def test_the_usl_by_hand() -> None:
    """sigma 0.19, kappa 0.01: N* = sqrt(0.81 / 0.01) = 9; X(4) = 400 / (1 + 0.57 + 0.12)."""
    found = fitted([[100.0], [200 / 1.21], [400 / 1.69], [800 / 2.89]])
    assert (found.sigma, found.kappa) == pytest.approx((0.19, 0.01))
    assert found.misfit == pytest.approx(0, abs=1e-9)
    assert found.knee
    assert found.knee.size == pytest.approx(9)
    assert (found.knee.low, found.interval(8)) == (None, None), "each size ran once"


@given(SHARES, CROSSTALK)
def test_a_law_without_noise_is_found_again_and_speed_grows_up_to_its_knee(
    sigma: float, kappa: float
) -> None:
    found = fitted(generated(sigma, kappa))
    assert found.rate_of_one == pytest.approx(1000, rel=1e-6)
    assert (found.sigma, found.kappa) == pytest.approx((sigma, kappa), abs=1e-6)
    end = found.knee.size if found.knee else found.largest
    rising = [found.rate(size) for size in np.linspace(found.smallest, end, 20)]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(rising))


@pytest.mark.parametrize(("sigma", "kappa"), [(0.05, 0.005), (0.3, 0.0), (0.0, 0.02)])
def test_intervals_hold_the_law_that_made_noisy_speeds(sigma: float, kappa: float) -> None:
    """Of 40 generated studies with 3 % noise at least 34 have each parameter in its interval."""
    within = np.zeros(3)
    truth = 1000 * relative_speed(16, sigma, kappa)
    for seed in range(40):
        found = fitted(generated(sigma, kappa, noise=0.03, repeats=3, seed=seed))
        ends = (found.sigma_interval(), found.kappa_interval(), found.interval(16))
        for at, (seen, value) in enumerate(zip(ends, (sigma, kappa, truth), strict=True)):
            assert seen
            within[at] += seen[0] - 1e-12 <= value <= seen[1]
    assert (within >= 34).all(), within


def test_intervals_are_the_same_each_time_in_any_order_and_wider_with_more_noise() -> None:
    sizes = [1.0, 2.0, 4.0, 8.0, 16.0]
    speeds = dict(zip(sizes, generated(0.1, 0.01, 0.02, 5, sizes=sizes), strict=True))
    found = fitted(list(speeds.values()), sizes=sizes)
    mixed = [8.0, 1.0, 16.0, 4.0, 2.0]
    assert fit_law(mixed, [speeds[size] for size in mixed]) == found
    assert found.knee
    assert found.knee.low is not None
    assert found.knee.high is not None
    assert found.knee.low <= math.sqrt(0.9 / 0.01) <= found.knee.high
    low, high = found.interval(8) or (0.0, 0.0)
    noisy = fitted(generated(0.1, 0.01, 0.2, 5, sizes=sizes), sizes=sizes).interval(8)
    assert noisy
    assert noisy[1] - noisy[0] > 3 * (high - low) > 0


def test_a_knee_beyond_four_times_the_largest_is_not_reported() -> None:
    """N* is sqrt(1 / 0.0005) = 44.7; eight cores support 32, sixteen 64."""
    assert fitted(generated(0.0, 0.0005)).knee is None
    sizes = [2.0, 4.0, 8.0, 16.0]
    further = fitted(generated(0.0, 0.0005, sizes=sizes), sizes=sizes)
    assert further.knee
    assert further.knee.size == pytest.approx(math.sqrt(2000))


def test_no_parameter_leaves_its_bounds_whatever_the_speeds_do() -> None:
    """Cores that only slow down are all contention or crosstalk; better than ideal is ideal."""
    slower = fitted([[100.0], [99.0], [97.0], [92.0]])
    assert slower.knee
    assert slower.knee.size < 4
    assert fitted([[100.0], [100.0], [100.0], [100.0]]).sigma == pytest.approx(1)
    better = fitted([[100.0], [210.0], [440.0], [890.0]])
    assert (better.sigma, better.kappa) == (0, 0)
    assert 0.04 < better.misfit < 0.11, "and the law shows how far off it is"


@given(
    st.floats(-0.3, 1.1),
    st.lists(st.lists(st.floats(0.8, 1.2), min_size=1, max_size=4), min_size=4, max_size=6),
)
def test_a_law_of_any_speeds_keeps_its_bounds(power: float, factors: list[list[float]]) -> None:
    sizes = [2.0**number for number in range(len(factors))]
    speeds = [
        [size**power * factor for factor in repeats]
        for size, repeats in zip(sizes, factors, strict=True)
    ]
    found = fit_law(sizes, speeds)
    if isinstance(found, Refusal):
        return
    assert found.rate_of_one > 0
    assert 0 <= found.sigma <= 1
    assert found.kappa >= 0
    for size in (1.0, sizes[-1], 4 * sizes[-1]):
        ends = found.interval(size)
        assert ends is None or ends[0] <= found.rate(size) <= ends[1]
    assert found.knee is None or 1 <= found.knee.size <= 4 * sizes[-1]


@pytest.mark.parametrize(
    ("sizes", "speeds", "reason"),
    [
        ([], [], "measured: none"),
        ([4.0, 1.0, 2.0], [[3.0], [1.0], [2.0]], "4 sizes or more; measured: 1, 2, 4"),
        (SIZES, [[1.0], [2.0], [], [3.0]], "no speed above 0"),
        (SIZES, [[1.0], [2.0], [0.0], [3.0]], "no speed above 0"),
        (SIZES, [[1.0], [4.0], [1.0], [4.0]], "do not follow the law"),
    ],
)
def test_a_law_is_refused_with_its_reason(
    sizes: list[float], speeds: list[list[float]], reason: str
) -> None:
    found = fit_law(sizes, speeds)
    assert isinstance(found, Refusal)
    assert reason in found.reason


@pytest.mark.parametrize("size", [0.2, 33.0])
def test_a_law_is_not_used_far_from_the_measured_sizes(size: float) -> None:
    found = fitted(generated(0.1, 0.0))
    for use in (found.rate, found.interval):
        with pytest.raises(OutOfReach, match=r"used from 0\.25 to 32: came"):
            use(size)
    assert found.rate(32) > 0


def test_crosstalk_is_settled_where_it_is_there_and_not_where_it_is_none() -> None:
    plain = fitted(generated(0.2, 0.0, noise=0.02, repeats=3)).kappa_interval()
    crossed = fitted(generated(0.05, 0.02, noise=0.02, repeats=3)).kappa_interval()
    assert plain
    assert crossed
    assert plain[0] == 0, "Amdahl's law"
    assert crossed[0] > 0


@pytest.mark.parametrize(("repeats", "confidence"), [(1, None), (2, 0.5), (3, 0.75), (6, 0.96875)])
def test_the_range_of_repeats_holds_the_median_with_a_known_confidence(
    repeats: int, confidence: float | None
) -> None:
    assert range_confidence(repeats) == confidence
