"""All figures of a report: which there are, in what words, in which formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure

from hpcncf_analysis.figures import efficiency, heatmap, plots, style
from hpcncf_analysis.figures.heatmap import Watched
from hpcncf_analysis.page.section import Drawn
from hpcncf_analysis.summary import Configuration

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
        "as much as the first.",
    ),
    "core_heatmap": (
        "The busiest run and the idlest",
        "A row for each core, time to the right: the darker, the busier. Wide strip: this run (an "
        "estimate: the kernel tells only where a thread ran last). Narrow strip: all others.",
    ),
    "step_time": (
        "Where a step's time goes",
        "A shorter bar is a faster configuration. input: waiting for the next batch; sync: the "
        "exposed wait for other ranks. Warm-up, evaluation, checkpoints and start-up are not in "
        "it.",
    ),
}


def draw(shown: Sequence[Configuration], watched: Sequence[Watched]) -> dict[str, Drawn]:
    """The figures that the runs leave something to show in, by name."""
    figures: dict[str, Figure | None] = {
        "efficiency_speed": efficiency.efficiency_against_speed(shown),
        "speedup": plots.speedup(shown),
        "core_heatmap": heatmap.core_heatmap(watched),
        "step_time": plots.step_time(shown),
    }
    return {name: drawn(name, figure) for name, figure in figures.items() if figure}


def drawn(name: str, figure: Figure) -> Drawn:
    title, caption = CAPTIONS[name]
    with style.styled():
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not once for each format
    svg, png, pdf = style.as_svg(figure, name), style.as_png(figure), style.as_pdf(figure)
    return Drawn(name, title, caption, svg, png, pdf)
