"""Fitted laws, against values worked by hand and generated speeds of a law that is known."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf_analysis.usl import Law, OutOfReach, Refusal, fit_law, fit_simplest_law, relative_speed

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
    found = fitted([[100.0], [100 / 0.55], [100 / 0.325], [100 / 0.2125]], name="amdahl")
    assert found.sigma == pytest.approx(0.1)
    assert found.rate_of_one == pytest.approx(100)
    assert found.kappa == 0
    assert found.rate(8) / found.rate(1) == pytest.approx(4.7058824)
    assert found.rate(16) == pytest.approx(100 / (0.1 + 0.9 / 16))
    assert found.knee is None


def test_the_usl_by_hand() -> None:
    """sigma 0.19, kappa 0.01: N* = sqrt(0.81 / 0.01) = 9; X(4) = 400 / (1 + 0.57 + 0.12)."""
    found = fitted([[100.0], [200 / 1.21], [400 / 1.69], [800 / 2.89]])
    assert found.sigma == pytest.approx(0.19)
    assert found.kappa == pytest.approx(0.01)
    assert found.knee.size == pytest.approx(9)
    assert found.knee.low is None, "one repeat of each size gives no interval"
    assert found.misfit == pytest.approx(0, abs=1e-9)


@given(SHARES, CROSSTALK)
def test_a_law_without_noise_is_found_again(sigma: float, kappa: float) -> None:
    found = fitted(generated(sigma, kappa))
    assert found.rate_of_one == pytest.approx(1000, rel=1e-6)
    assert found.sigma == pytest.approx(sigma, abs=1e-6)
    assert found.kappa == pytest.approx(kappa, abs=1e-6)


@pytest.mark.parametrize(("sigma", "kappa"), [(0.05, 0.005), (0.3, 0.0), (0.0, 0.02), (0.0, 0.0)])
def test_intervals_hold_the_law_that_made_noisy_speeds(sigma: float, kappa: float) -> None:
    """Of 40 generated studies with 3 % noise at least 34 have each parameter in its interval."""
    within = np.zeros(3)
    for seed in range(40):
        found = fitted(generated(sigma, kappa, noise=0.03, repeats=3, seed=seed))
        truth = 1000 * relative_speed(16, sigma, kappa)
        ends = (found.sigma_interval(), found.kappa_interval(), found.interval(16))
        for at, (seen, value) in enumerate(zip(ends, (sigma, kappa, truth), strict=True)):
            within[at] += seen[0] - 1e-12 <= value <= seen[1]
    assert (within >= 34).all(), within


def test_a_knee_has_an_interval_that_holds_the_true_one() -> None:
    sizes = [1.0, 2.0, 4.0, 8.0, 16.0]
    found = fit_law(sizes, generated(0.1, 0.01, noise=0.02, repeats=5, sizes=sizes))
    assert isinstance(found, Law)
    assert found.knee.low is not None
    assert found.knee.high is not None
    assert found.knee.low <= math.sqrt(0.9 / 0.01) <= found.knee.high


def test_a_knee_beyond_four_times_the_largest_is_not_reported() -> None:
    """N* is sqrt(1 / 0.0005) = 44.7; eight cores support 32, sixteen 64."""
    assert fitted(generated(0.0, 0.0005)).knee is None
    sizes = [2.0, 4.0, 8.0, 16.0]
    further = fit_law(sizes, generated(0.0, 0.0005, sizes=sizes))
    assert isinstance(further, Law)
    assert further.knee.size == pytest.approx(math.sqrt(2000))


def test_more_cores_that_only_slow_down_are_all_contention_or_crosstalk() -> None:
    """No parameter goes negative or above 1, whatever the speeds do."""
    found = fitted([[100.0], [99.0], [97.0], [92.0]])
    assert 0 <= found.sigma <= 1
    assert found.kappa >= 0
    assert found.knee.size < 4
    flat = fitted([[100.0], [99.0], [97.0], [96.0]], name="amdahl")
    assert flat.sigma == 1


def test_speeds_better_than_ideal_are_fitted_by_the_ideal() -> None:
    found = fitted([[100.0], [210.0], [440.0], [890.0]])
    assert (found.sigma, found.kappa) == (0, 0)
    assert 0.04 < found.misfit < 0.11, "and the law says how far off it is"


@pytest.mark.parametrize(
    ("sizes", "speeds", "reason"),
    [
        ([], [], "measured: none"),
        ([1.0, 2.0], [[1.0], [2.0]], "a law needs 4 sizes or more; measured: 1, 2"),
        ([1.0, 2.0, 4.0], [[1.0], [2.0], [3.0]], "measured: 1, 2, 4"),
        ([1.0, 2.0, 4.0, 8.0], [[1.0], [2.0], [], [3.0]], "no speed above 0"),
        ([1.0, 2.0, 4.0, 8.0], [[1.0], [2.0], [0.0], [3.0]], "no speed above 0"),
        ([1.0, 2.0, 4.0, 8.0], [[1.0], [4.0], [1.0], [4.0]], "do not follow the law"),
    ],
)
def test_a_law_is_refused_with_its_reason(
    sizes: list[float], speeds: list[list[float]], reason: str
) -> None:
    found = fit_law(sizes, speeds)
    assert isinstance(found, Refusal)
    assert reason in found.reason


@pytest.mark.parametrize("size", [0.2, 33.0, 1000.0])
def test_a_law_is_not_used_far_from_what_was_measured(size: float) -> None:
    found = fitted(generated(0.1, 0.0))
    with pytest.raises(OutOfReach, match=r"used from 0\.25 to 32: came"):
        found.rate(size)
    with pytest.raises(OutOfReach):
        found.interval(size)
    assert found.rate(32) > 0


def test_sizes_may_come_in_any_order() -> None:
    ordered = fitted(generated(0.1, 0.01, noise=0.02, repeats=3))
    speeds = dict(zip(SIZES, generated(0.1, 0.01, noise=0.02, repeats=3), strict=True))
    mixed = [8.0, 1.0, 4.0, 2.0]
    assert fit_law(mixed, [speeds[size] for size in mixed]) == ordered


def test_the_same_repeats_give_the_same_intervals() -> None:
    speeds = generated(0.1, 0.01, noise=0.05, repeats=3)
    assert fitted(speeds) == fitted(speeds)


def test_one_repeat_has_no_interval_and_more_noise_a_wider_one() -> None:
    assert fitted(generated(0.1, 0.01)).interval(8) is None
    widths = []
    for noise in (0.005, 0.05):
        ends = fitted(generated(0.1, 0.01, noise=noise, repeats=4)).interval(8)
        widths.append(ends[1] - ends[0])
    assert widths[1] > 3 * widths[0]


@given(
    st.floats(-0.3, 1.1),
    st.lists(st.lists(st.floats(0.8, 1.2), min_size=1, max_size=4), min_size=4, max_size=6),
)
def test_whatever_was_measured_the_law_keeps_its_bounds(
    power: float, factors: list[list[float]]
) -> None:
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
        if ends is not None:
            assert ends[0] <= found.rate(size) <= ends[1]
    if found.knee is not None:
        assert 1 <= found.knee.size <= 4 * sizes[-1]


@given(SHARES, CROSSTALK)
def test_speed_grows_up_to_the_knee_and_no_further(sigma: float, kappa: float) -> None:
    found = fitted(generated(sigma, kappa))
    end = found.knee.size if found.knee else found.largest
    rising = [found.rate(size) for size in np.linspace(found.smallest, end, 20)]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(rising))
    assert found.rate(SIZES[-1]) <= SIZES[-1] * found.rate_of_one * (1 + 1e-9), (
        "never better than ideal"
    )


def test_the_simplest_law_that_the_speeds_settle_is_taken() -> None:
    plain = fit_simplest_law(SIZES, generated(0.2, 0.0, noise=0.02, repeats=3))
    crossed = fit_simplest_law(SIZES, generated(0.05, 0.02, noise=0.02, repeats=3))
    assert isinstance(plain, Law)
    assert isinstance(crossed, Law)
    assert (plain.name, crossed.name) == ("amdahl", "usl")
    assert isinstance(fit_simplest_law([1.0], [[1.0]]), Refusal)
