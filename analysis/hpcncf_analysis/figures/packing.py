"""The packing curve: what runs side by side bring together, and each; None without one."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from hpcncf_analysis.figures import placing, style
from hpcncf_analysis.figures.placing import Label
from hpcncf_analysis.figures.style import GREY
from hpcncf_analysis.packing.curve import Curve
from hpcncf_analysis.packing.telling import named


def throughput(curves: Sequence[Curve]) -> Figure | None:
    """Full: all runs together, a ring around the size recommended. Dashed: each run."""
    shown = [curve for curve in curves if len(curve.sizes) > 1][: len(style.SERIES)]
    if not shown:
        return None
    with style.styled():
        figure = style.blank(4.2)
        axes = figure.subplots()
        colours = style.colours(named(curve) for curve in shown)
        ends = [_line(axes, curve, colours[named(curve)]) for curve in shown]
        _frame(axes, shown)
        placing.place(axes, ends, [])
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
    axes.yaxis.set_major_formatter(FuncFormatter(style.thousands))
    axes.set_xlabel("runs side by side")
    axes.set_title("Instances per second: all runs together, and each")
    style.quiet_grid(axes)
