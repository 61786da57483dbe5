"""Step times over a run, a step as a waterfall, ranks side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hpcncf.collect.training_columns import PHASES_TRAINED
from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.formatting import format_duration, format_number, format_percent
from hpcncf_analysis.report.figures.style import (
    BLUE,
    FAINT,
    GREY,
    PHASES_STYLE,
    PURPLE,
    new_figure,
    quiet_grid,
    report_style,
    wrap_titles,
)
from hpcncf_analysis.report.timeline import CHECKPOINT, EVALUATION, FIRST, SLOW, STOPS, Timeline

COLOURS: Final = {
    FIRST: PHASES_STYLE["input"],
    SLOW: "#8A6100",
    EVALUATION: "#2A7FA8",
    CHECKPOINT: PURPLE,
}
STEPS_IN: Final = 1.35
LANE_IN: Final = 0.24
# What is beyond so many times the time that all but a fiftieth stay below would flatten the rest.
MAX_OVER_QUANTILE: Final = 2.0
FIFTIETH: Final = 50


def timeline_figure(told: Mapping[str, Timeline]) -> Figure | None:
    """Title -> run: a panel for each, a lane below it for each kind of stop that it has."""
    if not told:
        return None
    lanes = [[kind for kind in STOPS if one.seconds(kind)] for one in told.values()]
    titles, lines_in = wrap_titles(
        f"{title}: {format_number(1000 * one.step_s)} ms" for title, one in told.items()
    )
    heights = [each for kinds in lanes for each in (STEPS_IN, LANE_IN * len(kinds))]
    with report_style():
        figure = new_figure(sum(heights) + lines_in + 0.65 * len(told) + 0.3)
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
    quiet_grid(axes)


def _top(times: list[float]) -> float:
    """The longest that is drawn to scale; an arrow stands for what is beyond."""
    ordered = sorted(times)
    return min(ordered[-1], MAX_OVER_QUANTILE * ordered[-1 - len(ordered) // FIFTIETH])


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
    axes.grid(visible=True, axis="x", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines["bottom"].set_color(GREY)


def _lengths(seconds: list[float]) -> str:
    """`6 × 0.82 s`, by the median."""
    each = format_duration(median(seconds))
    return each if len(seconds) == 1 else f"{len(seconds)} × {each}"


Row = Mapping[str, Any]

# A figure has room for so many ranks.
RANKS: Final = 32
# What a rank does of its own, told from its waiting.
PARTS: Final = {"input": "input", "computing": "forward", "waiting for ranks": "sync"}


def trained_rank_rows(ranks: Iterable[Row], one: Configuration) -> list[Row]:
    """The ranks' rows of a configuration's first run that counted steps."""
    run = one.rows[0]["run_id"]
    return [row for row in ranks if row["run_id"] == run and row.get("counted_steps")]


def phase_ms_per_step(ranks: Sequence[Row]) -> dict[str, float]:
    """Phase -> its milliseconds of a rank's mean step; those of no time are left out."""
    steps = sum(row["counted_steps"] for row in ranks)
    told = {
        phase: 1000 * sum(row[f"{phase}_s"] for row in ranks) / steps for phase in PHASES_TRAINED
    }
    return {phase: each for phase, each in told.items() if each > 0}


def waterfall_figure(shown: Sequence[Configuration], ranks: Sequence[Row]) -> Figure | None:
    """A panel for each configuration: phase below phase, each from where the one above ended."""
    told = [
        (one, phase_ms_per_step(rows)) for one in shown if (rows := trained_rank_rows(ranks, one))
    ]
    if not told:
        return None
    heights = [0.3 * len(phases) for _, phases in told]
    titles, lines_in = wrap_titles(
        f"{one.label}: {format_number(sum(phases.values()))} ms" for one, phases in told
    )
    with report_style():
        figure = new_figure(sum(heights) + lines_in + 0.55 * len(told) + 0.4)
        panels = figure.subplots(len(told), 1, squeeze=False, sharex=True, height_ratios=heights)[
            :, 0
        ]
        for axes, title, (_, phases) in zip(panels, titles, told, strict=True):
            _draw_waterfall(axes, phases)
            axes.set_title(title)
        panels[-1].set_xlim(0, 1.14 * max(sum(phases.values()) for _, phases in told))
        panels[-1].set_xlabel("milliseconds of a step, mean over steps and ranks")
    return figure


def _draw_waterfall(axes: Axes, phases: Mapping[str, float]) -> None:
    begun, whole = 0.0, sum(phases.values())
    for row, (phase, each) in enumerate(phases.items()):
        axes.barh(row, each, 0.7, begun, color=PHASES_STYLE[phase])
        begun += each
        axes.plot([begun, begun], [row, min(row + 1, len(phases) - 1)], color=GREY, lw=0.8)
        axes.annotate(
            format_percent(each / whole),
            (begun, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            size=9,
        )
    axes.set_yticks(range(len(phases)), list(phases))
    axes.set_ylim(len(phases) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)


def ranks_figure(ranks: Sequence[Row], title: str) -> Figure | None:
    """A bar for each rank of one run: input, computing, and waiting for the others."""
    shown = ranks[:RANKS]
    if len(shown) < 2:
        return None
    with report_style():
        figure = new_figure(1.5 + 0.3 * len(shown))
        axes = figure.subplots()
        for place, row in enumerate(shown):
            begun = 0.0
            for part, seconds in _phase_seconds(row).items():
                axes.barh(place, seconds, 0.7, begun, color=PHASES_STYLE[PARTS[part]])
                begun += seconds
        axes.set_yticks(range(len(shown)), [_rank(row, shown) for row in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("seconds of the counted steps")
        axes.set_title(title)
        handles = [Patch(color=PHASES_STYLE[phase], label=part) for part, phase in PARTS.items()]
        figure.legend(
            handles=handles, loc="outside upper left", ncols=3, frameon=False, handlelength=1.0
        )
    return figure


def _rank(row: Row, shown: Sequence[Row]) -> str:
    several = len({each["node"] for each in shown}) > 1
    return f"rank {row['rank']}{' ' + row['node'] if several else ''}"


def _phase_seconds(row: Row) -> dict[str, float]:
    """Seconds; what is neither input nor waiting is computing."""
    computing = max(row["counted_s"] - row["input_s"] - row["sync_s"], 0.0)
    return {"input": row["input_s"], "computing": computing, "waiting for ranks": row["sync_s"]}
