"""Memory that grows with every step, separated from memory that comes, goes or is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from hpcncf.monitor.memory_growth import Growth, steady


def grown(mib: Callable[[int], float], windows: int = 60, width_s: float = 1.0) -> float | None:
    found = steady([n * width_s for n in range(windows)], [mib(n) for n in range(windows)])
    return None if found is None else found.mib


def test_what_every_step_keeps_is_reported_with_its_size() -> None:
    assert grown(lambda n: 500 + 4 * n) == pytest.approx(188, rel=0.05)  # 4 MiB/s for 47 s
    assert grown(lambda n: 500 + 4 * n + 40 * (n % 10 == 0)) is not None  # with evaluations
    assert grown(lambda n: 500 + 4 * n, windows=600, width_s=60) is not None


@pytest.mark.parametrize(
    "mib",
    [
        lambda _: 800.0,
        lambda n: 500 + 300 * min(1, n / 10),  # loaded at the start
        lambda n: 900 - 500 * math.exp(-n / 12),  # levels off
        lambda n: 500 + 400 * (n > 40),  # comes in one piece
        lambda n: 500 + 200 * (n // 15 % 2),  # comes and goes
        lambda n: 500 + n,  # too little to say
        lambda n: 9_000 + 4 * n,  # of what there is, little
        lambda n: 1_000 - 5 * n,
    ],
)
def test_what_is_loaded_comes_or_goes_is_no_growth(mib: Callable[[int], float]) -> None:
    assert grown(mib) is None


def test_a_short_run_says_nothing() -> None:
    assert grown(lambda n: 500 + 50 * n, windows=7) is None
    assert grown(lambda n: 500 + 50 * n, windows=20, width_s=0.2) is None
    assert steady([], []) is None


def test_the_warning_names_what_usually_causes_it() -> None:
    seen = str(Growth(1234.5, 60))
    assert seen.startswith("memory grew steadily, by 1,234 MiB in 60 s")
    assert "loss.item() or loss.detach()" in seen


def test_a_process_that_has_ended_holds_nothing() -> None:
    at_s, mib = list(range(13)), [500.0 + 50 * n for n in range(11)] + [0.0, 0.0]
    assert steady(at_s, mib) is not None


def test_a_start_that_takes_most_of_the_time_is_no_growth() -> None:
    """Imports beside neighbours, then a training that holds what it has."""
    at_s = [float(second) for second in range(20)]
    mib = [min(20.0 * second, 260.0) for second in range(20)]
    growing = [20.0 * second for second in range(20)]
    assert steady(at_s[:14], mib[:14]) is not None
    assert steady(at_s, mib, begun_s=13.0) is None
    assert steady(at_s, growing, begun_s=13.0) is not None
