"""What a remedy is expected to bring, from the phases that were measured (docs/diagnosis.md). Pure.

A step's phases are shares that add up to 1; what is left of them after the remedy is L, and the
factor 1 / L. Constants are ratios measured by `python -m benchmarks strategies` at two sizes of
tables (docs/engines.md), not times: a machine's speed cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hpcncf_analysis.diagnosis.finding import Gain

CACHES: Final = 1.25
"""By how much the rest of a step may gain when the samples of Python no longer crowd the caches."""
SLOWEST_INPUT: Final = 0.2
"""Of a per-sample loader's time, what the vectorized one takes at worst."""
ROWWISE: Final = 1.3
"""By which factor either way the rowwise engine's step was off its formula."""
EXCHANGED: Final = 5.0
"""A rowwise step with its exchange of rows, in forward times of the reference engine."""

SAMPLED_LEFT: Final = (0.03, 0.0, 0.15)
"""Of a full ranking's time, what ranking 99 negatives takes: their share of thousands of items."""


def vectorized(phases: Mapping[str, float]) -> Gain:
    """Input made by whole arrays: Amdahl's bound 1 / (1 - input).

    The tenth of the input that remains, and what the rest of the step gains, cancel.
    """
    waits = phases["input"]
    bound = 1 / (1 - waits)
    return Gain(bound, 1 / (1 - waits * (1 - SLOWEST_INPUT)), CACHES * bound)


def rowwise(phases: Mapping[str, float]) -> Gain:
    """L = input + other + (4 - 2.4 optimizer) forward.

    What rowwise computes in a step is four forward passes where tables fit the cache. Where the
    reference engine's optimiser walks them through it, that engine's forward pass is dearer, and
    with an optimiser of 0.9 rowwise's step is less than two of them.
    """
    forward = phases.get("forward", 0.0)
    return _of_what_is_left(
        _around(phases) + (4 - 2.4 * phases.get("optimizer", 0.0)) * forward, ROWWISE
    )


def exchanged_rows(phases: Mapping[str, float]) -> Gain:
    """L = input + other + 5 forward: engine rowwise, and an exchange of rows for an all-reduce."""
    return _of_what_is_left(_around(phases) + EXCHANGED * phases.get("forward", 0.0), 1.5 * ROWWISE)


def _around(phases: Mapping[str, float]) -> float:
    return phases.get("input", 0.0) + phases.get("other", 0.0)


def _of_what_is_left(left: float, doubt: float) -> Gain:
    factor = 1 / max(left, 0.001)
    return Gain(factor, factor / doubt, factor * doubt)


def in_process(phases: Mapping[str, float], computed: float) -> Gain:
    """Batches made by the rank itself: `computed`, the workers' CPU time as a share of the steps,
    stands in for the wait, and holds what sending took: so the gain is at least that."""
    after = 1 - phases["input"] + computed
    return Gain(1 / after, 1 / (after + computed), 1 / (1 - phases["input"]))


def fewer_core_hours(share: float, left: tuple[float, float, float]) -> Gain:
    """The same work at 1 - share (1 - left) of its core-hours.

    `left`: of what the remedy removes, how much is expected to stay, at best, and at worst.
    """
    expected, best, worst = (1 - share * (1 - part) for part in left)
    return Gain(expected, best, worst, "core_hours")
