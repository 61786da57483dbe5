"""Where the time goes: the phases of a step, and of the whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcncf.collect.training_columns import PHASES_TRAINED
from hpcncf_analysis.configurations import Configuration, Table, select_fastest
from hpcncf_analysis.formatting import format_number, format_percent
from hpcncf_analysis.report.figure_style import INK, PHASES_STYLE, legend_above, new_figure
from hpcncf_analysis.report.section import (
    Column,
    Drawing,
    Paragraph,
    ReportData,
    Section,
    TableBlock,
    figures_table,
)
from hpcncf_analysis.report.sections.timeline import timeline_parts

Row = Mapping[str, Any]

# A narrower part of a bar has no room for its share.
MIN_SHARE_SHOWN: Final = 0.06
TIMES: Final = (
    Column("seconds: start-up", "startup_s"),
    Column("seconds: training", "training_s"),
    Column("seconds: evaluation", "evaluation_s", lambda value: format_number(value or None)),
    Column("seconds: checkpoints", "checkpoint_s", lambda value: format_number(value or None)),
    Column("evaluation: s/epoch", "seconds_per_evaluation"),
    Column("evaluation: pairs/s", "evaluation_pairs_per_s"),
)
PAUSES: Final = (
    *(f"an epoch's first batch: {what}" for what in ("first epoch, s", "later, s")),
    "an epoch's first batch: of the training",
    "the steps: slow ones",
    "the steps: longer in the last third",
)
QUICKER: Final = (
    "Evaluation took longer than training in {of}: sampled candidates are fewer than all items, "
    "and engine native ranks them fastest."
)
CAPTION: Final = (
    "A shorter bar is a faster configuration; shares of the step in per cent. input: waiting for "
    "the next batch; sync: the exposed wait for other ranks. Warm-up, evaluation, checkpoints and "
    "start-up are not in it."
)


def build(data: ReportData) -> Section:
    drawing = Drawing(
        "step_time", "Where a step's time goes", CAPTION, lambda: step_time_figure(data.shown)
    )
    parts = data.draw(drawing)
    if times := times_table(data.shown):
        note = evaluation_note(data.shown)
        parts.append(TableBlock(times, title="The whole run, beside its steps"))
        parts += [Paragraph(note)] if note else []
    parts += timeline_parts(data)
    if pauses := pauses_table(data.found.epochs, data.shown):
        parts.append(TableBlock(pauses, title="Pauses, and the pace of the steps"))
    return Section("step", "Where the time goes", parts)


def times_table(shown: Sequence[Configuration]) -> Table | None:
    """None where nothing was trained."""
    trained = [one for one in shown if one.median("training_s") is not None]
    return figures_table(trained, TIMES) if trained else None


def pauses_table(epochs: Sequence[Row], shown: Sequence[Configuration]) -> Table | None:
    """The wait for each epoch's first batch (what starting workers costs, once in each epoch),
    single slow steps, and whether the others kept their pace.

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
            format_percent(one.median("pause_share")),
            format_percent(one.median("step_drift")),
        ]
        rows.append([one.label, *cells])
    return Table(["configuration", *PAUSES], rows) if rows else None


def evaluation_note(shown: Sequence[Configuration]) -> str | None:
    """What to do where most of a run was evaluation."""
    slow = [
        one.label
        for one in shown
        if (one.median("evaluation_s") or 0.0) > (one.median("training_s") or 0.0)
    ]
    if not slow:
        return None
    few = len(slow) < len(shown) and len(slow) <= 3
    return QUICKER.format(of="; ".join(slow) if few else f"{len(slow)} of {len(shown)}")


def step_time_figure(configurations: Sequence[Configuration]) -> Figure | None:
    """Milliseconds of wall time per 1000 instances, by phase.

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
        _draw_bar(axes, row, one, longest)
    axes.set_xlim(0, longest * 1.16)
    axes.set_ylim(len(shown) - 0.4, -0.75)
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("milliseconds per 1000 instances")
    present = [p for p in PHASES_TRAINED if any(one.median(f"{p}_share") for one in shown)]
    legend_above(figure, {phase: PHASES_STYLE[phase] for phase in present})
    return figure


def _draw_bar(axes: Axes, row: int, one: Configuration, longest: float) -> None:
    total_ms, left = 1e6 / (one.speed or 1.0), 0.0
    for phase in PHASES_TRAINED:
        share = one.median(f"{phase}_share") or 0.0
        width = total_ms * share
        axes.barh(row, width, 0.46, left, color=PHASES_STYLE[phase], edgecolor="w", lw=0.4)
        if width > MIN_SHARE_SHOWN * longest:
            at = (left + width / 2, row)
            axes.annotate(f"{share:.0%}", at, ha="center", va="center", size=9, color="w")
        left += width
    axes.text(0, row - 0.27, one.label, va="bottom", size=10)
    axes.annotate(
        f"{format_number(total_ms)} ms",
        (left, row),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        size=10,
        color=INK,
    )
