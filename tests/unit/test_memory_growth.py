"""Memory that grows with every step, separated from memory that comes, goes or is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from hpcncf.monitor.memory_growth import Growth, steady


def grown(mib: Callable[[int], float], windows: int = 60, width_s: float = 1.0) -> Growth | None:
    return steady([n * width_s for n in range(windows)], [mib(n) for n in range(windows)])


def test_what_every_step_keeps_is_reported_with_its_size_and_usual_cause() -> None:
    found = grown(lambda n: 500 + 4 * n)
    assert found is not None
    assert found.mib == pytest.approx(188, rel=0.05)  # 4 MiB/s for 47 s
    assert str(Growth(1234.5, 60)).startswith("memory grew steadily, by 1,234 MiB in 60 s")
    assert "loss.item() or loss.detach()" in str(found)


@pytest.mark.parametrize(
    ("mib", "windows", "width_s", "grows"),
    [
        (lambda n: 500 + 4 * n + 40 * (n % 10 == 0), 60, 1.0, True),  # with evaluations
        (lambda n: 500 + 4 * n, 600, 60.0, True),
        (lambda n: 500 + 50 * n if n < 11 else 0, 13, 1.0, True),  # it has ended
        (lambda _: 800.0, 60, 1.0, False),
        (lambda n: 500 + 300 * min(1, n / 10), 60, 1.0, False),  # loaded at the start
        (lambda n: 900 - 500 * math.exp(-n / 12), 60, 1.0, False),  # levels off
        (lambda n: 500 + 400 * (n > 40), 60, 1.0, False),  # comes in one piece
        (lambda n: 500 + 200 * (n // 15 % 2), 60, 1.0, False),  # comes and goes
        (lambda n: 500 + n, 60, 1.0, False),  # too little to say
        (lambda n: 9_000 + 4 * n, 60, 1.0, False),  # of what there is, little
        (lambda n: 1_000 - 5 * n, 60, 1.0, False),
        (lambda n: 500 + 50 * n, 7, 1.0, False),  # too short a run
        (lambda n: 500 + 50 * n, 20, 0.2, False),
        (lambda _: 0.0, 0, 1.0, False),
    ],
)
def test_what_is_loaded_comes_or_goes_is_no_growth(
    mib: Callable[[int], float], windows: int, width_s: float, grows: bool
) -> None:
    assert (grown(mib, windows, width_s) is not None) == grows


def test_a_start_that_takes_most_of_the_time_is_no_growth() -> None:
    """Imports beside neighbours, then a training that holds what it has."""
    at_s = [float(second) for second in range(20)]
    mib = [min(20.0 * second, 260.0) for second in range(20)]
    assert steady(at_s[:14], mib[:14]) is not None
    assert steady(at_s, mib, begun_s=13.0) is None
    assert steady(at_s, [20.0 * second for second in range(20)], begun_s=13.0) is not None
