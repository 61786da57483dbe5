"""The plot of efficiency against speed, and of cost, with lines of equal cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MultipleLocator,
    NullLocator,
    PercentFormatter,
)

from hpcncf_analysis.configurations import (
    Configuration,
    figure_key,
    number_rows,
)
from hpcncf_analysis.report import figure_style as style
from hpcncf_analysis.report.figure_style import FAINT, GREY, INK, NumberedPoint, number_points

# Less than this many cores unused is not worth a word in a figure.
MIN_UNUSED_NAMED: Final = 0.15
EFFICIENCY_CAPTION: Final = (
    "Best is the upper right. Large points are medians (a circle: one rank, a square: several), "
    "small ones single runs. Below, at the same speeds, the price: the band from the cores used up "
    "to the cores allocated is waste. Along a grey line an epoch costs the same, less than along "
    "the one to its left. Dashed, with wide rings: the Pareto front of the whole job's time and "
    "cost."
)


def efficiency_against_speed(
    configurations: Sequence[Configuration], front: Sequence[Configuration] = ()
) -> Figure | None:
    """Figure of CPU efficiency over speed and, below it, of the cores allocated and used.

    None if there is nothing to compare.

    Core-seconds per epoch depend on speed and cores, not on efficiency: their iso-lines are
    straight in the lower panel (cores over speed, both logarithmic) and could only be drawn in the
    upper one for each number of cores anew. Both panels share the speed, so a point is found in
    the other straight above or below it. In the lower panel a ring is what the configuration is
    allocated, a dot what it used, and the line between them is the waste; a dashed line joins the
    configurations of `front`, which no other beats in both time and cost.
    """
    shown = [one for one in configurations if one.speed and one.median("cpu_efficiency")]
    if not shown or len({one.is_command for one in shown}) > 1:
        return None
    if shown[0].is_command and (len(shown) == 1 or len({one.command for one in shown}) > 1):
        return None  # one point says no more than its row; other commands do other work
    figure = style.new_figure(7.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.25, 1])
    colours = style.series_colours(one.series for one in configurations)
    _speed_axis(lower, shown)
    _draw_efficiencies(upper, shown, colours)
    _draw_costs(lower, shown, colours)
    if len(shown) > 1 and front:
        places = sorted((one.speed or 0.0, one.cores) for one in front)
        lower.plot(*zip(*places, strict=True), "--o", ms=16, mfc="none", color=INK, lw=1)
        style.annotate(lower, "Pareto front", places[-1], (-12, 14), ha="right")
    numbers, names = number_rows(configurations), figure_key(configurations)
    medians = [
        NumberedPoint(
            one.speed or 0.0,
            one.median("cpu_efficiency") or 0.0,
            numbers[one.key],
            colours[one.series],
            style.rank_marker(one.ranks),
        )
        for one in shown
        if one.key in numbers
    ]
    for one in shown:
        if names and (unused := one.cores - _cores_used(one)) >= MIN_UNUSED_NAMED:
            names[numbers[one.key]] += f", {unused:.1f} unused"
    number_points(upper, medians, names)
    return figure


def _speed_axis(axes: Axes, shown: Sequence[Configuration]) -> None:
    speeds = [_run_speed(one, row) for one in shown for row in one.rows]
    low, high = min(speeds), max(speeds)
    room = max((high / low) ** 0.12, 1.25)
    axes.set_xscale("log")
    axes.set_xlim(low / room, high * room)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(style.format_thousands))
    unit = "runs per hour" if shown[0].by_time else "instances per second, all ranks"
    axes.set_xlabel(f"speed ({unit}; logarithmic)")


def _run_speed(one: Configuration, row: Mapping[str, float]) -> float:
    return 3600 / row["elapsed_s"] if one.by_time else row["instances_per_s"]


def _group_by_look(
    shown: Sequence[Configuration], colours: Mapping[str, str]
) -> dict[tuple[str, str], list[Configuration]]:
    """Group points by colour and marker, so that one call draws each group."""
    grouped: dict[tuple[str, str], list[Configuration]] = {}
    for one in shown:
        grouped.setdefault((colours[one.series], style.rank_marker(one.ranks)), []).append(one)
    return grouped


def _draw_efficiencies(
    axes: Axes, shown: Sequence[Configuration], colours: Mapping[str, str]
) -> None:
    """Draw CPU efficiency over speed: small points are runs, large ones medians."""
    highest = max(row["cpu_efficiency"] for one in shown for row in one.rows)
    for (colour, marker), ones in _group_by_look(shown, colours).items():
        runs = [(_run_speed(one, row), row["cpu_efficiency"]) for one in ones for row in one.rows]
        axes.plot(*zip(*runs, strict=True), ".", ms=5, color=colour, alpha=0.4)
        medians = [(one.speed or 0.0, one.median("cpu_efficiency") or 0.0) for one in ones]
        axes.plot(*zip(*medians, strict=True), marker, ms=10, mec="w", color=colour)
    axes.set_ylim(0, max(1.15, 1.12 * highest))
    axes.axhline(1, color=GREY, lw=1, ls=":")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_locator(MultipleLocator(0.2))
    axes.set_title("CPU efficiency: busy share of the cores allocated")
    style.quiet_grid(axes)


def _cores_used(one: Configuration) -> float:
    return one.median("cores_used") or one.cores


def _draw_costs(axes: Axes, shown: Sequence[Configuration], colours: Mapping[str, str]) -> None:
    counts = sorted({one.cores for one in shown})
    bounds = [*counts, *map(_cores_used, shown)]
    axes.set_yscale("log", base=2)
    axes.set_ylim(min(bounds) / 1.5, max(bounds) * 1.5)
    work = work_per_epoch(shown)
    if work is not None:
        _draw_iso_lines(axes, work)
    for (colour, marker), ones in _group_by_look(shown, colours).items():
        speeds, allocated = [one.speed or 0.0 for one in ones], [one.cores for one in ones]
        used = [_cores_used(one) for one in ones]
        axes.vlines(speeds, used, allocated, color=colour, lw=7, alpha=0.3)
        axes.plot(speeds, used, marker, ms=6, color=colour)
        axes.plot(speeds, allocated, marker, ms=11, mfc="none", mew=1.8, color=colour)
    axes.yaxis.set_major_locator(FixedLocator(counts))
    axes.yaxis.set_minor_locator(FixedLocator(nice_values(*axes.get_ylim())))
    for formatted in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        formatted(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="y", which="minor", labelsize=8, labelcolor=GREY)
    grey = f"; grey: core-seconds per {'run' if shown[0].by_time else 'epoch'}"
    axes.set_title(f"Cores allocated (○) and used (•){grey if work is not None else ''}")


def _draw_iso_lines(axes: Axes, work: float) -> None:
    """Draw and label lines of equal core-seconds per epoch, or per run of a command."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for cost in nice_values(low * work / right, high * work / left):
        speeds = [left, right]
        axes.plot(speeds, [cost * speed / work for speed in speeds], color=FAINT, lw=1, zorder=0)
        speed = min(right, high * work / cost) / 1.02
        if speed < left * 1.2:
            continue  # the corner has no room for its label
        at_top = speed < right / 1.05
        offset, va = ((-3, -3), "top") if at_top else ((-2, 2), "bottom")
        place = (speed, cost * speed / work)
        style.annotate(axes, f"{cost:g}", place, offset, ha="right", va=va, color=GREY)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def work_per_epoch(shown: Sequence[Configuration]) -> float | None:
    """Instances per epoch if equal for all configurations, else None; 3600 for runs per hour."""
    if shown[0].by_time:
        return 3600.0
    sizes = {one.median("instances_per_epoch") for one in shown}
    return sizes.pop() if len(sizes) == 1 else None


def nice_values(low: float, high: float) -> list[float]:
    """Round values 1, 2, 5, 10, ... between two bounds; only powers of ten if too many."""
    powers = range(int(log10(low)) - 2, int(log10(high)) + 2)
    nice = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    inside = [value for value in nice if low < value < high]
    return inside if len(inside) <= 9 else [v for v in inside if f"{v:e}".startswith("1.0")]
