"""What a remedy is expected to bring, from measured shares (docs/diagnosis.md). Pure."""

from __future__ import annotations

from hpcncf_analysis.diagnosis.finding import Gain


def removed(share: float, left: tuple[float, float, float]) -> Gain:
    """Amdahl's law for a part of the steps' time: `share` of it shrinks to `left` of itself.

    `left`: expected, at best, at worst. With nothing left the factor is Amdahl's bound
    1 / (1 - share).
    """
    expected, best, worst = (1 / (1 - share * (1 - part)) for part in left)
    return Gain(expected, worst, best)


def fewer_core_hours(share: float, left: tuple[float, float, float]) -> Gain:
    """The same work costs 1 - share (1 - left) of its core-hours; `left` as for `removed`."""
    expected, best, worst = (1 - share * (1 - part) for part in left)
    return Gain(expected, best, worst, "core_hours")
