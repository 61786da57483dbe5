"""Numbers, shares, intervals and durations as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import floor, log10

from hpcncf import table, text

NONE = table.NONE
THIN = "\u202f"


def format_percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:z.0f}{THIN}%"


def format_number(value: float | None) -> str:
    """Format with three significant digits and a thousands separator: `96,100`, `0.031`."""
    if value is None:
        return NONE
    if abs(value) >= 100:
        digits = 3 - len(f"{abs(value):.0f}")
        return f"{round(value, min(digits, 0)):,.0f}"
    if 0 < abs(value) < 1e-4:
        return f"{value:.{2 - floor(log10(abs(value)))}f}"  # never 4.39e-05
    return f"{value:.3g}"


def format_metric(value: float | None) -> str:
    """Format a figure of unknown meaning with four significant digits, so that near ones differ."""
    return format_number(value) if value is None or abs(value) >= 1000 else f"{value:.4g}"


def format_ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}×" if value < 10 else f"{value:.0f}×"


def format_score(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def format_cores(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def format_hundredths(value: float | None) -> str:
    """Format a column of figures with two decimals, such as `1.00` and `1.31`."""
    return NONE if value is None else f"{value:.2f}"


def format_duration(value: float | None) -> str:
    """Format a duration as in a terminal, but with spaces at which no browser breaks."""
    return NONE if value is None else text.format_duration(value, THIN)


def format_core_time(core_hours: float | None) -> str:
    if core_hours is None:
        return NONE
    letter, of_an_hour = select_time_unit([core_hours])
    return f"{format_number(of_an_hour * core_hours)}{THIN}core-{letter}"


def select_time_unit(hours: Iterable[float | None]) -> tuple[str, float]:
    """Choose the unit for a column of times and its size as a share of an hour.

    Seconds if the smallest is below a tenth of an hour, else hours; unknown times do not count.
    """
    least = min((each for each in hours if each), default=0.0)
    return ("s", 3600.0) if least < 0.1 else ("h", 1.0)


def format_mebibytes(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}{THIN}MiB"


def format_interval(
    low: float | None, high: float | None, show: Callable[[float | None], str]
) -> str:
    """Format an interval as `[low–high]`; empty for a single repeat, which has none."""
    return "" if low is None or high is None else f"[{show(low)}–{show(high)}]"
