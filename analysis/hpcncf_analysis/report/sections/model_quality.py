"""Quality: HR@10 over seconds, epochs, and the time to a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from matplotlib.figure import Figure

from hpcncf.table import Table
from hpcncf_analysis.configurations import Configuration, figure_key, number_rows, select_fastest
from hpcncf_analysis.formatting import (
    NONE,
    format_core_time,
    format_duration,
    format_number,
    format_percent,
    format_score,
)
from hpcncf_analysis.quality import TimeToQuality, describe_time_to_quality, times_to_quality
from hpcncf_analysis.report import figure_style as style
from hpcncf_analysis.report.figure_style import NumberedPoint, number_points
from hpcncf_analysis.report.section import (
    Column,
    Drawing,
    Paragraph,
    ReportData,
    Section,
    SectionPart,
    figures_table,
    titled_table,
)

Row = Mapping[str, Any]

SCORES: Final = (
    Column("HR@10", "hr10", format_score),
    Column("NDCG@10", "ndcg10", format_score),
    Column("HR@10 unseen", "hr10_unseen", format_score),
    Column("loss", "loss", format_score),
    Column("HR@10 at the end", "hr10_at_end", format_score),
)
EPOCH_TIMES: Final = {"training s": "training_s", "evaluation s": "evaluation_s"}
EPOCH_SCORES: Final = {
    "loss": "loss",
    "HR@10": "hr10",
    "NDCG@10": "ndcg10",
    "HR@10 unseen": "hr10_unseen",
}
CAPTION: Final = (
    "Of each configuration's first run. Further left is sooner; the height is what speed must not "
    "cost."
)


def build(data: ReportData) -> Section:
    drawing = Drawing(
        "quality",
        "Quality over time",
        CAPTION,
        lambda: quality_figure(data.shown, data.found.epochs),
    )
    parts = data.draw(drawing)
    if table := quality_table(data.shown):
        note = quality_note(data.runs)
        parts = [*([Paragraph(note)] if note else []), *parts, table]
    return Section("quality", "Quality", [*parts, *time_to_quality_parts(data)])


def build_epochs(data: ReportData) -> Section:
    """Section on the quality after each epoch of each configuration's first run."""
    labels = {one.rows[0]["run_id"]: one.label for one in data.shown}
    rows = [
        [
            labels[row["run_id"]],
            str(row["epoch"] + 1),
            *(format_number(row[name]) for name in EPOCH_TIMES.values()),
            *(format_score(row[name]) for name in EPOCH_SCORES.values()),
        ]
        for row in data.found.epochs
        if row["run_id"] in labels
    ]
    table = Table(["configuration", "epoch", *EPOCH_TIMES, *EPOCH_SCORES], rows)
    title = "Epochs of each configuration's first run"
    return Section("epochs", title, [table] if rows else [], folded=True)


def quality_table(shown: Sequence[Configuration]) -> Table | None:
    """Table of HR@10 and NDCG@10, with a popularity ranking; None without evaluations."""
    judged = [one for one in shown if one.median("hr10") is not None]
    if not judged:
        return None
    table = figures_table(judged, SCORES)
    for one in [one for one in judged if one.median("baseline_hr10") is not None][:1]:
        counts = (format_score(one.median(f"baseline_{name}")) for name in ("hr10", "ndcg10"))
        unknown = [NONE] * (len(SCORES) - 2)
        table.rows.append(["count table (no training)", *counts, *unknown])
    return Table(table.columns, table.rows)


def quality_note(runs: Sequence[Row]) -> str | None:
    """Warn that HR@10 is mostly memory if most test pairs occur in training; or None."""
    known = [row for row in runs if row["unseen_test_rows"] is not None and row["test_rows"]]
    if not known:
        return None
    row = known[0]
    seen = 1 - row["unseen_test_rows"] / row["test_rows"]
    if seen <= 0.5:
        return None
    baseline, reached = row["baseline_hr10"], row["hr10"]
    beats = baseline is not None and reached is not None and baseline >= reached
    table = " A table of the user's own counts already does better than the model." if beats else ""
    return (
        f"{format_percent(seen)} of the {row['test_rows']:,} test pairs also occur in training, so "
        f"HR@10 here is mostly memory.{table} This data set measures speed well and recommendation "
        "badly: look at HR@10 unseen, and judge recommendation on data with a real task."
    )


def quality_over_time(epochs: Iterable[Row]) -> list[tuple[float, float]]:
    """(seconds since the first step, HR@10) after each evaluated epoch of one run."""
    seconds, found = 0.0, []
    for row in epochs:
        seconds += sum(row[name] for name in ("training_s", "evaluation_s", "checkpoint_s"))
        if row["hr10"] is not None:
            found.append((seconds, row["hr10"]))
    return found


def quality_figure(shown: Sequence[Configuration], epochs: Sequence[Row]) -> Figure | None:
    """Figure of HR@10 over time, with one line for each configuration's first run."""
    by_run: dict[str, list[Row]] = {}
    for row in epochs:
        by_run.setdefault(row["run_id"], []).append(row)
    courses = [
        (one, quality_over_time(by_run.get(one.rows[0]["run_id"], [])))
        for one in select_fastest(shown)
    ]
    courses = [(one, points) for one, points in courses if len(points) > 1]
    if not courses:
        return None
    figure = style.new_figure(4.2)
    axes = figure.subplots()
    colours, numbers = style.series_colours(one.series for one in shown), number_rows(shown)
    ends = []
    for one, points in courses:
        colour, marker = colours[one.series], style.rank_marker(one.ranks)
        axes.plot(*zip(*points, strict=True), f"-{marker}", ms=5, color=colour)
        ends.append(NumberedPoint(*points[-1], numbers[one.key], colour, marker))
    axes.margins(y=0.1)
    axes.set_xlim(0, 1.05 * max(points[-1][0] for _, points in courses))
    axes.set_xlabel("seconds since the first step, evaluation included")
    axes.set_title("HR@10 after each epoch")
    style.quiet_grid(axes)
    number_points(axes, ends, figure_key(shown))
    return figure


def time_to_quality_table(found: Sequence[TimeToQuality]) -> Table | None:
    """Table of times to the target; None without evaluations."""
    rows = [
        [
            each.configuration.label,
            _time(each),
            format_number(each.epochs),
            format_core_time(each.core_hours),
            f"{each.reached} of {each.runs}",
        ]
        for each in found
    ]
    columns = ["configuration", "time to quality", "epochs", "core time", "runs that reached it"]
    return Table(columns, rows) if rows else None


def _time(each: TimeToQuality) -> str:
    if each.seconds is None:
        return "never" if each.reached == 0 else "most never"
    high = format_duration(each.high) if each.high is not None else "never"
    interval = "" if each.low is None else f"\n[{format_duration(each.low)}–{high}]"
    return format_duration(each.seconds) + interval


def time_to_quality_parts(data: ReportData) -> list[SectionPart]:
    """Table of times to the requested target and a summary; empty without a target."""
    if data.quality is None:
        return []
    found = times_to_quality(data.shown, data.found.epochs, data.quality)
    return [
        *titled_table(time_to_quality_table(found), f"Time until HR@10 reaches {data.quality:g}"),
        Paragraph(describe_time_to_quality(found, data.quality)),
    ]
