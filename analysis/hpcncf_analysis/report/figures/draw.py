"""Draw all figures of a report, and save them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from matplotlib.figure import Figure

from hpcncf.collect.collect import Collected
from hpcncf_analysis.configurations import Configuration, completed_runs
from hpcncf_analysis.packing import curves
from hpcncf_analysis.report.figures import timeline
from hpcncf_analysis.report.figures.cores import CoreTrace, core_heatmap
from hpcncf_analysis.report.figures.efficiency import (
    efficiency_against_speed,
    speedup_figure,
    step_time_figure,
)
from hpcncf_analysis.report.figures.scaling import packing_figure, quality_figure
from hpcncf_analysis.report.figures.style import as_pdf, as_png, as_svg, report_style
from hpcncf_analysis.report.figures.timeline import (
    ranks_figure,
    trained_rank_rows,
    waterfall_figure,
)
from hpcncf_analysis.report.section import RenderedFigure, omit_failure
from hpcncf_analysis.report.timeline import Timeline

CAPTIONS: Final = {
    "efficiency_speed": (
        "Efficiency against speed",
        "Best is the upper right. Large points are medians (a circle: one rank, a square: "
        "several), small ones single runs. Below, at the same speeds, the price: the band from the "
        "cores used up to the cores allocated is waste, and along a grey line an epoch costs the "
        "same, less than along the one to its left. Dashed, with wide rings: the Pareto front, "
        "whom no other beats in both time and cost.",
    ),
    "speedup": (
        "Speed-up over cores",
        "Full lines: more cores for each rank. Dashed: more ranks. Dotted: ideal, each core does "
        "as much as the first. Bands, where four sizes or more were measured: the law fitted to "
        "them, with its 95 % interval over the repeats.",
    ),
    "core_heatmap": (
        "Each core over time",
        "A row for each core, time to the right: the fuller its colour, the busier. Wide strip: "
        "this run (an estimate: the kernel tells only where a thread ran last). Narrow strip: all "
        "others.",
    ),
    "waterfall": (
        "One step, phase after phase",
        "The configuration recommended, then the slowest. Each bar begins where the one above it "
        "ended. input: waiting for the next batch; sync: the exposed wait for other ranks.",
    ),
    "timeline": (
        "The steps over time, and the pauses",
        "Blue: the mean time of a few steps, one after another, of the first rank; pauses are "
        "taken out of it and stand below, each as wide as it is long. An arrow stands for steps "
        "beyond the panel. The configuration recommended, then the slowest, then the least steady "
        "where a run did not keep its pace.",
    ),
    "ranks": (
        "Ranks of one run",
        "Even bars of computing are balance. A rank that computes longer makes the others wait.",
    ),
    "quality": (
        "Quality over time",
        "Of each configuration's first run. Further left is sooner; the height is what speed must "
        "not cost.",
    ),
    "packing": (
        "Runs side by side",
        "Full: all runs together; dashed: each of them; dotted: as many times one run alone. The "
        "ring is the number recommended.",
    ),
    "step_time": (
        "Where a step's time goes",
        "A shorter bar is a faster configuration. input: waiting for the next batch; sync: the "
        "exposed wait for other ranks. Warm-up, evaluation, checkpoints and start-up are not in "
        "it.",
    ),
}


def draw_figures(
    found: Collected,
    shown: Sequence[Configuration],
    watched: Sequence[CoreTrace],
    timelines: Mapping[str, Timeline],
    chosen: Configuration | None,
    front: Sequence[Configuration],
) -> tuple[dict[str, RenderedFigure], list[str]]:
    """The figures that the runs leave something to show in, by name; and a sentence for each that
    failed. `chosen` is recommended."""
    figures: dict[str, Callable[[], Figure | None]] = {
        "efficiency_speed": lambda: efficiency_against_speed(shown, front),
        "speedup": lambda: speedup_figure(shown),
        "waterfall": lambda: waterfall_figure(recommended_and_slowest(shown, chosen), found.ranks),
        "step_time": lambda: step_time_figure(shown),
        "timeline": lambda: timeline.timeline_figure(timelines),
        "core_heatmap": lambda: core_heatmap(watched),
        "ranks": lambda: _ranks(found, shown, chosen),
        "quality": lambda: quality_figure(shown, found.epochs),
        "packing": lambda: packing_figure(curves(completed_runs(found.runs))),
    }
    drawn, failed = dict[str, RenderedFigure](), list[str]()
    for name, draw in figures.items():
        with omit_failure(f"figure “{CAPTIONS[name][0]}”") as problems:
            if figure := draw():
                drawn[name] = render_figure(name, figure)
        failed += problems
    return drawn, failed


def recommended_and_slowest(
    shown: Sequence[Configuration], chosen: Configuration | None
) -> list[Configuration]:
    """The one recommended, and the slowest of those that trained."""
    trained = [one for one in shown if one.speed and one.median("input_share") is not None]
    slowest = min(trained, key=lambda one: one.speed or 0.0, default=None)
    told = [one for one in (chosen, slowest) if one in trained]
    return list({one.key: one for one in told if one}.values())


def _ranks(
    found: Collected, shown: Sequence[Configuration], chosen: Configuration | None
) -> Figure | None:
    """Of the one recommended where it has several ranks, else of the fastest that has."""
    several = [one for one in shown if one.ranks > 1 and one.speed]
    if not several:
        return None
    one = max(several, key=lambda one: (one is chosen, one.speed or 0.0))
    return ranks_figure(trained_rank_rows(found.ranks, one), one.label)


def render_figure(name: str, figure: Figure) -> RenderedFigure:
    title, caption = CAPTIONS[name]
    with report_style():
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not once for each format
    svg, png, pdf = as_svg(figure, name), as_png(figure), as_pdf(figure)
    return RenderedFigure(name, title, caption, svg, png, pdf)
