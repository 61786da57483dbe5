"""A figure with its interval, as a cell of a table has it. Pure."""

from __future__ import annotations

from collections.abc import Callable

from hpcncf_analysis import words

Interval = tuple[float, float] | None
Show = Callable[[float | None], str]


def ends(low: float | None, high: float | None) -> Interval:
    """None unless both are known."""
    return None if low is None or high is None else (low, high)


def with_ends(value: float | None, interval: Interval, show: Show) -> str:
    """`1.50×`, and below it `[1.42×–1.58×]` where there is an interval."""
    if interval is None:
        return show(value)
    return f"{show(value)}\n{words.interval(*interval, show)}"
