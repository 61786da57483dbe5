"""Where the time goes: the phases of a step, and of the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hpcncf.collect.training_columns import PHASES_TRAINED
from hpcncf_analysis.configurations import (
    Configuration,
    Table,
    select_fastest,
)
from hpcncf_analysis.formatting import (
    format_number,
    format_percent,
)
from hpcncf_analysis.report.figures import style
from hpcncf_analysis.report.figures.style import (
    FAINT,
    GREY,
    INK,
    PHASES_STYLE,
    new_figure,
    report_style,
    wrap_titles,
)
from hpcncf_analysis.report.section import Drawing, Paragraph, ReportData, Section, TableBlock
from hpcncf_analysis.report.sections.timeline import timeline_parts

Row = Mapping[str, Any]

PARTS: Final = {
    "start-up": "startup_s",
    "training": "training_s",
    "evaluation": "evaluation_s",
    "checkpoints": "checkpoint_s",
}


FIRST_BATCH: Final = tuple(
    f"an epoch's first batch: {what}" for what in ("first epoch, s", "later, s", "of the training")
)


STEADY: Final = {
    "the steps: slow ones": "pause_share",
    "the steps: longer in the last third": "step_drift",
}


QUICKER: Final = (
    "Evaluation took longer than training in {of}: sampled candidates are fewer than all items, "
    "and engine native ranks them fastest."
)


def times_table(shown: Sequence[Configuration]) -> Table | None:
    """None where nothing was trained."""
    rows = [
        [
            one.label,
            # 0 is none of it: evaluation: none, checkpoint_every: 0.
            *(format_number(one.median(name) or None) for name in PARTS.values()),
            format_number(one.median("seconds_per_evaluation")),
            format_number(one.median("evaluation_pairs_per_s")),
        ]
        for one in shown
        if one.median("training_s") is not None
    ]
    columns = [*(f"seconds: {part}" for part in PARTS), "evaluation: s/epoch"]
    return Table(["configuration", *columns, "evaluation: pairs/s"], rows) if rows else None


def pauses_table(
    epochs: Sequence[Mapping[str, Any]], shown: Sequence[Configuration]
) -> Table | None:
    """The wait for each epoch's first batch (what starting workers costs, once in each epoch),
    single slow steps, and whether the others kept their pace.

    Medians over a configuration's runs; None if no epoch is known.
    """
    by_run: dict[str, list[Mapping[str, Any]]] = {}
    for epoch in epochs:
        by_run.setdefault(epoch["run_id"], []).append(epoch)
    rows = []
    for one in shown:
        runs = [each for row in one.rows if (each := by_run.get(row["run_id"]))]
        if runs:
            first = median(run[0]["first_batch_s"] for run in runs)
            later = [epoch["first_batch_s"] for run in runs for epoch in run[1:]]
            paused = sum(epoch["first_batch_s"] for run in runs for epoch in run)
            trained = sum(epoch["training_s"] for run in runs for epoch in run)
            share = format_percent(paused / trained if trained else None)
            after = format_number(median(later) if later else None)
            kept = [format_percent(one.median(name)) for name in STEADY.values()]
            rows.append([one.label, format_number(first), after, share, *kept])
    return Table(["configuration", *FIRST_BATCH, *STEADY], rows) if rows else None


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


def trained_rank_rows(ranks: Iterable[Row], one: Configuration) -> list[Row]:
    """The ranks' rows of a configuration's first run that counted steps."""
    run = one.rows[0]["run_id"]
    return [row for row in ranks if row["run_id"] == run and row.get("counted_steps")]


def phase_ms_per_step(ranks: Sequence[Row]) -> dict[str, float]:
    """Phase -> its milliseconds of a rank's mean step; those of no time are left out."""
    steps = sum(row["counted_steps"] for row in ranks)
    found = {
        phase: 1000 * sum(row[f"{phase}_s"] for row in ranks) / steps for phase in PHASES_TRAINED
    }
    return {phase: each for phase, each in found.items() if each > 0}


def waterfall_figure(shown: Sequence[Configuration], ranks: Sequence[Row]) -> Figure | None:
    """A panel for each configuration: phase below phase, each from where the one above ended."""
    found = [
        (one, phase_ms_per_step(rows)) for one in shown if (rows := trained_rank_rows(ranks, one))
    ]
    if not found:
        return None
    heights = [0.3 * len(phases) for _, phases in found]
    titles, lines_in = wrap_titles(
        f"{one.label}: {format_number(sum(phases.values()))} ms" for one, phases in found
    )
    with report_style():
        figure = new_figure(sum(heights) + lines_in + 0.55 * len(found) + 0.4)
        panels = figure.subplots(len(found), 1, squeeze=False, sharex=True, height_ratios=heights)[
            :, 0
        ]
        for axes, title, (_, phases) in zip(panels, titles, found, strict=True):
            _draw_waterfall(axes, phases)
            axes.set_title(title)
        panels[-1].set_xlim(0, 1.14 * max(sum(phases.values()) for _, phases in found))
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


def step_time_figure(configurations: Sequence[Configuration]) -> Figure | None:
    """Where the time goes: milliseconds of wall time per 1000 instances, by phase.

    A bar is as long as 1 / speed; its parts are the phases' shares over all ranks.
    """
    found = [one for one in configurations if one.speed and one.median("input_share") is not None]
    shown = select_fastest(found)
    if not shown:
        return None
    with style.report_style():
        figure = style.new_figure(1.3 + 0.62 * len(shown))
        axes = figure.subplots()
        for row, one in enumerate(shown):
            _bar(axes, row, one)
        longest = max(1e6 / (one.speed or 1.0) for one in shown)
        axes.set_xlim(0, longest * 1.16)
        axes.set_ylim(len(shown) - 0.4, -0.75)
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("milliseconds per 1000 instances")
        _phase_key(figure, shown)
    return figure


def _bar(axes: Axes, row: int, one: Configuration) -> None:
    total_ms, left = 1e6 / (one.speed or 1.0), 0.0
    for phase in PHASES_TRAINED:
        width = total_ms * (one.median(f"{phase}_share") or 0.0)
        axes.barh(row, width, 0.46, left, color=style.PHASES_STYLE[phase], edgecolor="w", lw=0.4)
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


def _phase_key(figure: Figure, shown: Sequence[Configuration]) -> None:
    present = [p for p in PHASES_TRAINED if any(one.median(f"{p}_share") for one in shown)]
    handles = [Patch(color=style.PHASES_STYLE[phase], label=phase) for phase in present]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=3,
        frameon=False,
        columnspacing=1.2,
        handlelength=1.0,
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
            lambda: waterfall_figure(data.recommended_and_slowest, data.found.ranks),
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
        parts.append(TableBlock(times, title="The whole run, beside its steps"))
        parts += [Paragraph(note)] if note else []
    parts += timeline_parts(data)
    if pauses := pauses_table(data.found.epochs, data.shown):
        parts.append(TableBlock(pauses, title="Pauses, and the pace of the steps"))
    return Section("step", "Where the time goes", parts)
