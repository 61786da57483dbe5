"""The time of a run's steps over its time, and below it what stood still between them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcncf_analysis import words
from hpcncf_analysis.figures import style
from hpcncf_analysis.figures.style import BLUE, GREY
from hpcncf_analysis.timeline import CHECKPOINT, EVALUATION, FIRST, SLOW, STOPS, Timeline

COLOURS: Final = {
    FIRST: style.PHASES_STYLE["input"],
    SLOW: "#8A6100",
    EVALUATION: "#2A7FA8",
    CHECKPOINT: style.PURPLE,
}
STEPS_IN: Final = 1.35
LANE_IN: Final = 0.24
# What is beyond so many times the time that all but a fiftieth stay below would flatten the rest.
BEYOND: Final = 2.0
FIFTIETH: Final = 50


def timelines(told: Mapping[str, Timeline]) -> Figure | None:
    """Title -> run: a panel for each, a lane below it for each kind of stop that it has."""
    if not told:
        return None
    lanes = [[kind for kind in STOPS if one.seconds(kind)] for one in told.values()]
    titles, lines_in = style.headings(
        f"{title}: {words.number(1000 * one.step_s)} ms" for title, one in told.items()
    )
    heights = [each for kinds in lanes for each in (STEPS_IN, LANE_IN * len(kinds))]
    with style.styled():
        figure = style.blank(sum(heights) + lines_in + 0.65 * len(told) + 0.3)
        panels = figure.subplots(len(heights), 1, height_ratios=heights)
        pairs = zip(panels[::2], panels[1::2], titles, told.values(), lanes, strict=True)
        for steps, below, title, one, kinds in pairs:
            steps.set_title(title)
            _steps(steps, one)
            _lanes(below, one, kinds)
        panels[-1].set_xlabel("seconds since the first step")
    return figure


def _steps(axes: Axes, one: Timeline) -> None:
    """A level line for each sum of steps; nothing where none was taken."""
    top = _top([each.step_s for each in one.stretches])
    at: list[float] = []
    ms: list[float] = []
    for each in one.stretches:
        if at and each.begun_s > at[-1]:
            at, ms = [*at, at[-1]], [*ms, float("nan")]
        at += [each.begun_s, each.ended_s]
        ms += [1000 * min(each.step_s, top)] * 2
    axes.plot(at, ms, color=BLUE, lw=1.2, solid_capstyle="butt")
    beyond = [each.begun_s for each in one.stretches if each.step_s > top]
    if beyond:  # an empty line would claim room in the layout
        axes.plot(beyond, [1000 * top] * len(beyond), "^", color=BLUE, ms=6, clip_on=False)
    axes.set_xlim(0, one.ended_s)
    axes.set_ylim(0, 1150 * top)
    axes.set_ylabel("ms a step")
    axes.tick_params(axis="x", labelbottom=False)
    style.quiet_grid(axes)


def _top(times: list[float]) -> float:
    """The longest that is drawn to scale; an arrow stands for what is beyond."""
    ordered = sorted(times)
    return min(ordered[-1], BEYOND * ordered[-1 - len(ordered) // FIFTIETH])


def _lanes(axes: Axes, one: Timeline, kinds: list[str]) -> None:
    for row, kind in enumerate(kinds):
        bars = [(stop.begun_s, stop.seconds) for stop in one.stops if stop.kind == kind]
        # The edge keeps the shortest visible.
        axes.broken_barh(bars, (row - 0.36, 0.72), color=COLOURS[kind], lw=0.8)
        axes.annotate(
            _lengths(one.seconds(kind)),
            (1, row),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=10,
        )
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_ylim(max(len(kinds), 1) - 0.5, -0.5)
    axes.set_xlim(0, one.ended_s)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x", color=style.FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines["bottom"].set_color(GREY)


def _lengths(seconds: list[float]) -> str:
    """`6 × 0.82 s`, by the median."""
    each = words.duration(median(seconds))
    return each if len(seconds) == 1 else f"{len(seconds)} × {each}"
