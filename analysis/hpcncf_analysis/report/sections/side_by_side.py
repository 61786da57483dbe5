"""Runs side by side on a node or GPU: how many do most together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from hpcncf.text import pluralize
from hpcncf_analysis.packing import TITLE, Curve, curves, left_out, sentences, table
from hpcncf_analysis.report import figure_style as style
from hpcncf_analysis.report.figure_style import GREY
from hpcncf_analysis.report.section import (
    BulletList,
    Drawing,
    Paragraph,
    ReportData,
    Section,
)

NOTE: Final = (
    "The answer at the top is about what a single run takes and costs, this about how many do most "
    "together. All: the runs of a pack together, median over packs. A total within 5 % of the "
    "greatest is as good, and the fewest runs that reach it are recommended. MiB: the sum of the "
    "runs' peaks, in which pages that they share are counted for each."
)
CAPTION: Final = (
    "Full: all runs together; dashed: each of them; dotted: as many times one run alone. The ring "
    "is the number recommended."
)


def build(data: ReportData) -> Section:
    found = curves(data.runs)
    if not found:
        return Section("packing", TITLE, [])
    note = NOTE
    if over := left_out(data.runs):
        note += (
            f" Left out: {pluralize(over, 'run')} of packs that were short, mixed or incomplete."
        )
    drawing = Drawing("packing", "Runs side by side", CAPTION, lambda: packing_figure(found))
    parts = [
        BulletList([sentence for each in found for sentence in sentences(each)]),
        *data.draw(drawing),
        table(found),
        Paragraph(note, note=True),
    ]
    return Section("packing", TITLE, parts)


def packing_figure(curves: Sequence[Curve]) -> Figure | None:
    """Figure of speed over pack size: solid for all runs together, dashed for one run."""
    shown = [curve for curve in curves if len(curve.sizes) > 1][: len(style.SERIES)]
    if not shown:
        return None
    figure = style.new_figure(4.2)
    axes = figure.subplots()
    colours = style.series_colours(curve.label for curve in shown)
    for curve in shown:
        colour, best = colours[curve.label], curve.recommended
        runs = [size.runs for size in curve.sizes]
        totals = [size.total for size in curve.sizes]
        axes.plot(runs, totals, "o-", color=colour, lw=1.8, ms=7, mec="w")
        axes.plot(runs, [size.each for size in curve.sizes], "--", color=colour, lw=1.2)
        for size in curve.sizes:
            axes.plot([size.runs, size.runs], [size.low, size.high], color=colour, lw=1)
        axes.plot(best.runs, best.total, "o", ms=14, mfc="none", mec=colour, mew=1.4)
        if runs[0] == 1:
            axes.plot([1, runs[-1]], [totals[0], totals[0] * runs[-1]], ":", color=GREY, lw=1)
    counts = sorted({size.runs for curve in shown for size in curve.sizes})
    axes.set_ylim(0, 1.15 * max(size.high for curve in shown for size in curve.sizes))
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.yaxis.set_major_formatter(FuncFormatter(style.format_thousands))
    axes.set_xlabel("runs side by side")
    axes.set_title("Instances per second: all runs together, and each")
    style.quiet_grid(axes)
    style.legend_above(figure, colours)
    return figure
