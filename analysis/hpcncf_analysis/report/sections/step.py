"""Where the time goes: the phases of a step, and of the whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcncf.collect.training_columns import PHASES_TRAINED
from hpcncf.table import Table
from hpcncf_analysis.configurations import Configuration, select_fastest
from hpcncf_analysis.formatting import format_number, format_percent
from hpcncf_analysis.report.figure_style import (
    FAINT,
    GREY,
    PHASES_STYLE,
    annotate,
    legend_above,
    name_rows,
    new_figure,
    stack_panels,
)
from hpcncf_analysis.report.section import (
    Column,
    Drawing,
    Paragraph,
    ReportData,
    Section,
    figures_table,
)
from hpcncf_analysis.report.sections.timeline import timeline_parts

Row = Mapping[str, Any]

TIMES: Final = (
    Column("seconds: start-up", "startup_s"),
    Column("seconds: training", "training_s"),
    Column("seconds: evaluation", "evaluation_s", lambda value: format_number(value or None)),
    Column("seconds: checkpoints", "checkpoint_s", lambda value: format_number(value or None)),
    Column("evaluation: s/epoch", "seconds_per_evaluation"),
    Column("evaluation: pairs/s", "evaluation_pairs_per_s"),
)
FIRST_BATCH: Final = ("first epoch, s", "later epochs, s", "share of the training")
QUICKER: Final = (
    "Evaluation took longer than training in {of}: sampled candidates are fewer than all items, "
    "and engine native ranks them fastest."
)
WATERFALL_CAPTION: Final = (
    "The configuration recommended, then the slowest. Each bar begins where the one above it "
    "ended. input: waiting for the next batch; sync: the exposed wait for other ranks."
)
STEP_CAPTION: Final = (
    "A shorter bar is a faster configuration. input: waiting for the next batch; sync: the exposed "
    "wait for other ranks. Warm-up, evaluation, checkpoints and start-up are not in it."
)


def build(data: ReportData) -> Section:
    parts = data.draw(
        Drawing(
            "waterfall",
            "One step, phase after phase",
            WATERFALL_CAPTION,
            lambda: waterfall_figure(
                {one.label: data.trained_ranks(one) for one in data.chosen_and_slowest}
            ),
        ),
        Drawing(
            "step_time",
            "Where a step's time goes",
            STEP_CAPTION,
            lambda: step_time_figure(data.shown),
        ),
    )
    if times := times_table(data.shown):
        note = evaluation_note(data.shown)
        parts.append(replace(times, title="The whole run, beside its steps"))
        parts += [Paragraph(note)] if note else []
    parts += timeline_parts(data)
    if waits := first_batch_table(data.found.epochs, data.shown):
        parts.append(replace(waits, title="Waiting for an epoch's first batch"))
    return Section("step", "Where the time goes", parts)


def times_table(shown: Sequence[Configuration]) -> Table | None:
    """Table of times per step; None without training."""
    trained = [one for one in shown if one.median("training_s") is not None]
    return figures_table(trained, TIMES) if trained else None


def first_batch_table(epochs: Sequence[Row], shown: Sequence[Configuration]) -> Table | None:
    """Table of waits for an epoch's first batch: what starting the workers costs, once an epoch.

    Medians over a configuration's runs; None if no epoch is known.
    """
    by_run: dict[str, list[Row]] = {}
    for epoch in epochs:
        by_run.setdefault(epoch["run_id"], []).append(epoch)
    rows = []
    for one in shown:
        runs = [each for row in one.rows if (each := by_run.get(row["run_id"]))]
        if not runs:
            continue
        later = [epoch["first_batch_s"] for run in runs for epoch in run[1:]]
        paused = sum(epoch["first_batch_s"] for run in runs for epoch in run)
        trained = sum(epoch["training_s"] for run in runs for epoch in run)
        cells = [
            format_number(median(run[0]["first_batch_s"] for run in runs)),
            format_number(median(later) if later else None),
            format_percent(paused / trained if trained else None),
        ]
        rows.append([one.label, *cells])
    return Table(["configuration", *FIRST_BATCH], rows) if rows else None


def evaluation_note(shown: Sequence[Configuration]) -> str | None:
    """Advice if a configuration evaluated for longer than it trained; otherwise None."""
    slow = [
        one.label
        for one in shown
        if (one.median("evaluation_s") or 0.0) > (one.median("training_s") or 0.0)
    ]
    if not slow:
        return None
    few = len(slow) < len(shown) and len(slow) <= 3
    return QUICKER.format(of="; ".join(slow) if few else f"{len(slow)} of {len(shown)}")


def phase_ms_per_step(ranks: Sequence[Row]) -> dict[str, float]:
    """Phase -> milliseconds in a rank's mean step, without phases of zero time."""
    steps = sum(row["counted_steps"] for row in ranks)
    seconds = {phase: sum(row[f"{phase}_s"] for row in ranks) for phase in PHASES_TRAINED}
    return {phase: 1000 * each / steps for phase, each in seconds.items() if each > 0}


def waterfall_figure(ranks: Mapping[str, Sequence[Row]]) -> Figure | None:
    """Figure of a mean step as a waterfall: each phase starts where the previous one ends."""
    steps = {label: phase_ms_per_step(rows) for label, rows in ranks.items() if rows}
    if not steps:
        return None
    heights = {
        f"{label}: {format_number(sum(phases.values()))} ms": [0.3 * len(phases)]
        for label, phases in steps.items()
    }
    panels = stack_panels(heights, sharex=True)
    for (axes,), phases in zip(panels, steps.values(), strict=True):
        _draw_waterfall(axes, phases)
    axes.set_xlim(0, 1.14 * max(sum(phases.values()) for phases in steps.values()))
    axes.set_xlabel("milliseconds of a step, mean over steps and ranks")
    return axes.get_figure(root=True)


def _draw_waterfall(axes: Axes, phases: Mapping[str, float]) -> None:
    ended, whole = 0.0, sum(phases.values())
    for row, (phase, each) in enumerate(phases.items()):
        axes.barh(row, each, 0.7, ended, color=PHASES_STYLE[phase])
        ended += each
        axes.plot([ended, ended], [row, min(row + 1, len(phases) - 1)], color=GREY, lw=0.8)
        annotate(axes, format_percent(each / whole), (ended, row))
    name_rows(axes, list(phases))
    axes.grid(visible=True, axis="x", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)


def step_time_figure(configurations: Sequence[Configuration]) -> Figure | None:
    """Figure of the milliseconds of wall time per 1000 instances, by phase.

    A bar is as long as 1 / speed; its parts are the phases' shares over all ranks.
    """
    found = [one for one in configurations if one.speed and one.median("input_share") is not None]
    shown = select_fastest(found)
    if not shown:
        return None
    figure = new_figure(1.3 + 0.62 * len(shown))
    axes = figure.subplots()
    longest = max(1e6 / (one.speed or 1.0) for one in shown)
    for row, one in enumerate(shown):
        _draw_bar(axes, row, one)
    axes.set_xlim(0, longest * 1.16)
    axes.set_ylim(len(shown) - 0.4, -0.75)
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("milliseconds per 1000 instances")
    present = [p for p in PHASES_TRAINED if any(one.median(f"{p}_share") for one in shown)]
    legend_above(figure, {phase: PHASES_STYLE[phase] for phase in present})
    return figure


def _draw_bar(axes: Axes, row: int, one: Configuration) -> None:
    total_ms, left = 1e6 / (one.speed or 1.0), 0.0
    for phase in PHASES_TRAINED:
        width = total_ms * (one.median(f"{phase}_share") or 0.0)
        axes.barh(row, width, 0.46, left, color=PHASES_STYLE[phase], edgecolor="w", lw=0.4)
        left += width
    axes.text(0, row - 0.27, one.label, va="bottom", size=10)
    annotate(axes, f"{format_number(total_ms)} ms", (left, row), size=10)
