"""Fitted scaling laws, quality over time, and the packing curve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from hpcncf_analysis.configurations import (
    Configuration,
    figure_labels,
    group_by_series,
    select_fastest,
)
from hpcncf_analysis.packing import Curve, named
from hpcncf_analysis.report.figures import style
from hpcncf_analysis.report.figures.style import GREY, Label, place_labels
from hpcncf_analysis.scaling import Line, lines_to_fit, scaling_lines
from hpcncf_analysis.usl import Law, fit_simplest_law

# A figure that reached as far as the law may be used would press the measured part together.
BEYOND: Final = 1.5
POINTS: Final = 60


def draw_laws(
    axes: Axes, shown: Sequence[Configuration], colours: Mapping[str, str]
) -> list[tuple[float, float]]:
    """A curve and its band for each line of enough sizes; returns their ends (cores, speed-up)."""
    bases = {series: found[0].speed or 1.0 for series, found in group_by_series(shown).items()}
    ends = []
    for line in lines_to_fit(scaling_lines(shown)):
        fitted = fit_simplest_law(line.sizes, line.speeds())
        if isinstance(fitted, Law):
            ends.append(_draw(axes, line, fitted, bases[line.series], colours[line.series]))
    return ends


def _draw(axes: Axes, line: Line, fitted: Law, base: float, colour: str) -> tuple[float, float]:
    cores_of_one = line.base.cores / line.sizes[0]
    sizes = np.geomspace(line.sizes[0], BEYOND * line.sizes[-1], POINTS)
    cores = sizes * cores_of_one
    gains = [fitted.rate(size) / base for size in sizes]
    axes.plot(cores, gains, color=colour, lw=1, ls=(0, (1, 1)), zorder=1)
    bands = [fitted.interval(size) for size in sizes]
    if all(bands):
        low, high = zip(*(band for band in bands if band), strict=True)
        axes.fill_between(
            cores, np.array(low) / base, np.array(high) / base, color=colour, alpha=0.15, lw=0
        )
    return float(cores[-1]), gains[-1]


Row = Mapping[str, Any]

PIECES: Final = 12
TIMED: Final = ("training_s", "evaluation_s", "checkpoint_s")


def quality_over_time(epochs: Iterable[Row]) -> list[tuple[float, float]]:
    """(seconds since the first step, HR@10) after each evaluated epoch of one run."""
    seconds, found = 0.0, []
    for row in epochs:
        seconds += sum(row[name] for name in TIMED)
        if row["hr10"] is not None:
            found.append((seconds, row["hr10"]))
    return found


def quality_figure(shown: Sequence[Configuration], epochs: Sequence[Row]) -> Figure | None:
    """A line for each configuration's first run, a point for each evaluation."""
    by_run: dict[str, list[Row]] = {}
    for row in epochs:
        by_run.setdefault(row["run_id"], []).append(row)
    told = [
        (one, quality_over_time(by_run.get(one.rows[0]["run_id"], [])))
        for one in select_fastest(shown)
    ]
    told = [(one, points) for one, points in told if len(points) > 1]
    if not told:
        return None
    with style.report_style():
        figure = style.new_figure(4.2)
        axes = figure.subplots()
        colours, names = style.series_colours(one.series for one in shown), figure_labels(shown)
        for one, points in told:
            marker = style.rank_marker(one.ranks)
            axes.plot(*zip(*points, strict=True), f"-{marker}", ms=5, color=colours[one.series])
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.45 * (high - low))  # the labels stand above the lines
        axes.set_xlim(0, 1.2 * max(points[-1][0] for _, points in told))
        axes.set_xlabel("seconds since the first step, evaluation included")
        axes.set_title("HR@10 after each epoch")
        style.quiet_grid(axes)
        ends = [Label(*points[-1], names[one.key], colours[one.series]) for one, points in told]
        place_labels(axes, ends, [point for _, points in told for point in sample_sizes(points)])
    return figure


def sample_sizes(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The line through them as points, each stretch in `PIECES`: a label is to leave it free."""
    return [
        (x0 + (x1 - x0) * at / PIECES, y0 + (y1 - y0) * at / PIECES)
        for (x0, y0), (x1, y1) in pairwise(points)
        for at in range(PIECES)
    ] + [points[-1]]


def packing_figure(curves: Sequence[Curve]) -> Figure | None:
    """Full: all runs together, a ring around the size recommended. Dashed: each run."""
    shown = [curve for curve in curves if len(curve.sizes) > 1][: len(style.SERIES)]
    if not shown:
        return None
    with style.report_style():
        figure = style.new_figure(4.2)
        axes = figure.subplots()
        colours = style.series_colours(named(curve) for curve in shown)
        ends = [_line(axes, curve, colours[named(curve)]) for curve in shown]
        _frame(axes, shown)
        place_labels(axes, ends, [])
    return figure


def _line(axes: Axes, curve: Curve, colour: str) -> Label:
    runs = [size.runs for size in curve.sizes]
    totals = [size.total for size in curve.sizes]
    axes.plot(runs, totals, "o-", color=colour, lw=1.8, ms=7, mec="w")
    axes.plot(runs, [size.each for size in curve.sizes], "--", color=colour, lw=1.2)
    for size in curve.sizes:
        axes.plot([size.runs, size.runs], [size.low, size.high], color=colour, lw=1)
    best = curve.recommended
    axes.plot(best.runs, best.total, "o", ms=14, mfc="none", mec=colour, mew=1.4)
    if runs[0] == 1:
        axes.plot([1, runs[-1]], [totals[0], totals[0] * runs[-1]], ":", color=GREY, lw=1)
    return Label(runs[-1], totals[-1], named(curve), colour)


def _frame(axes: Axes, shown: Sequence[Curve]) -> None:
    counts = sorted({size.runs for curve in shown for size in curve.sizes})
    span = counts[-1] - counts[0]
    axes.set_xlim(counts[0] - 0.08 * span, counts[-1] + 0.7 * span)  # labels stand to the right
    axes.set_ylim(0, 1.15 * max(size.high for curve in shown for size in curve.sizes))
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.yaxis.set_major_formatter(FuncFormatter(style.format_thousands))
    axes.set_xlabel("runs side by side")
    axes.set_title("Instances per second: all runs together, and each")
    style.quiet_grid(axes)
