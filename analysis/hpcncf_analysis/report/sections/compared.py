"""The main table: speed, what it cost, and the quality beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hpcncf.table import Table
from hpcncf.text import pluralize
from hpcncf_analysis.configurations import (
    MAX_DRAWN,
    MAX_LABELLED,
    Configuration,
    format_column_name,
    group_by_series,
    numeric_metrics,
)
from hpcncf_analysis.formatting import (
    NONE,
    THIN,
    format_core_time,
    format_cores,
    format_duration,
    format_hundredths,
    format_metric,
    format_percent,
    format_ratio,
    format_score,
)
from hpcncf_analysis.report.section import (
    Column,
    Paragraph,
    ReportData,
    Section,
    figures_table,
)
from hpcncf_analysis.usl import range_confidence

Row = Mapping[str, Any]

# What a command may report that our own training has, too, and its heading here.
METRIC_HEADINGS: Final = {
    "instances_per_s": "instances/s",
    "loss": "loss",
    "hr10": "HR@10",
    "ndcg10": "NDCG@10",
}
# These say how far a command was, not what came of it.
PROGRESS_METRICS: Final = {"metric_epoch", "metric_epochs", "metric_step"}
MAX_METRICS: Final = 8

SPEED: Final = (
    Column("instances/s", "instances_per_s", has_range=True),
    Column("HR@10", "hr10", format_score),
    Column("NDCG@10", "ndcg10", format_score),
)
SCALING: Final = (
    Column("speed-up", "speedup", format_ratio),
    Column("parallel efficiency", "parallel_efficiency", format_percent),
)
CORES: Final = (
    Column("cores: allocated", "cores_allocated", format_cores),
    Column("cores: usable", "cores_usable", format_cores),
    Column("cores: used", "cores_used", format_hundredths),
    Column("CPU efficiency: whole run", "cpu_efficiency", format_percent),
    Column("CPU efficiency: peak", "cpu_efficiency_peak", format_percent),
)
COSTS: Final = (
    Column("CPU efficiency: in training", "cpu_efficiency_training", format_percent),
    Column("s/epoch", "seconds_per_epoch"),
    Column("core-s/epoch", "core_s_per_epoch"),
)


def main_table(shown: Sequence[Configuration]) -> Table:
    """Main table: speed, cost and quality; without training, time in place of speed."""
    if all(one.is_command for one in shown):
        metrics = [
            Column(METRIC_HEADINGS.get(name, format_column_name(name)), name, format_metric)
            for name in reported_metrics(shown)
        ]
        elapsed = Column("elapsed", "elapsed_s", format_duration)
        cost = Column("core time", "core_hours", format_core_time)
        table = figures_table(shown, [elapsed, *metrics, *CORES, cost])
    else:
        compared = compared_sizes(shown)
        table = figures_table(shown, [*SPEED, *(SCALING if compared else ()), *CORES, *COSTS])
        for one, row in zip(shown, table.rows, strict=True):
            cells = dict(zip(table.columns, row, strict=True))
            if compared and one.series not in compared:
                cells |= dict.fromkeys((column.heading for column in SCALING), NONE)
            if one.rows[0]["epoch_extrapolated"]:
                cells |= {name: f"≈{THIN}{cells[name]}" for name in ("s/epoch", "core-s/epoch")}
            row[:] = cells.values()
    efficiency = table.columns.index("CPU efficiency: whole run")
    for number, (one, row) in enumerate(zip(shown, table.rows, strict=True), start=1):
        if (one.median("cpu_efficiency") or 0.0) > 1:
            row[efficiency] += " !"
        if len(shown) > MAX_LABELLED:  # the number by which crowded figures name it
            row[0] = f"{number}: {one.label}"
    return table


def compared_sizes(shown: Sequence[Configuration]) -> set[str]:
    """Names of the series with at least two configurations to compare."""
    return {name for name, sizes in group_by_series(shown).items() if len(sizes) > 1}


def main_notes(shown: Sequence[Configuration]) -> list[str]:
    """Notes that explain the main table."""
    notes = [_repeats_note({len(one.rows) for one in shown})]
    if compared_sizes(shown) and not all(one.is_command for one in shown):
        notes.append("Speed-up is against the fewest cores with otherwise equal settings.")
    without = [one for one in shown if one.median("cpu_efficiency_peak") is None]
    if without:
        windows = [row.get("peak_window_s") for one in without for row in one.rows]
        longest = max((window for window in windows if window), default=None)
        notes.append(
            f"No peak where a run was shorter than its window, {format_duration(longest)}."
        )
    scored = sorted({int(one.rows[0].get("scored_epochs") or 0) for one in shown} - {0})
    if scored:
        after = " or ".join(pluralize(number, "epoch") for number in scored)
        notes.append(
            f"HR@10 and NDCG@10 are compared after {after}, which all have; “Quality” has those at "
            "the end."
        )
    if any(one.rows[0].get("epoch_extrapolated") for one in shown):
        notes.append("≈: an epoch extrapolated from the speed; all were cut short.")
    if len(shown) > MAX_LABELLED:
        notes.append("In the figures, numbers stand for the rows.")
    if len(shown) > MAX_DRAWN:
        notes.append(f"The figures show the {MAX_DRAWN} fastest only.")
    return notes


def _repeats_note(repeats: set[int]) -> str:
    if repeats <= {1}:
        return "One run each: no interval."
    up_to = "up to " if len(repeats) > 1 else ""
    most = max(repeats)
    return (
        f"Medians over {up_to}{most} repeats, [smallest–largest]; of {most} repeats that range "
        f"holds the median of endless ones with {format_percent(range_confidence(most))} "
        "confidence."
    )


def reported_metrics(shown: Sequence[Configuration]) -> list[str]:
    """Names of metrics that commands reported, at most `MAX_METRICS`."""
    known = {name for one in shown for name in one.figures} - PROGRESS_METRICS
    metrics = numeric_metrics(row for one in shown for row in one.rows)
    return [name for name in [*METRIC_HEADINGS, *metrics] if name in known][:MAX_METRICS]


def describe_accounting(runs: Sequence[Row], unaccounted: Sequence[str]) -> str | None:
    """Sentence on whether Slurm's accounting agrees with the records; None without Slurm."""
    if unaccounted:
        return f"Slurm's accounting cannot be compared: {unaccounted[0]}."
    by_slurm = [row for row in runs if row["slurm_state"]]
    compared = [row for row in by_slurm if row["slurm_agrees"] is not None]
    agree = [row for row in compared if row["slurm_agrees"]]
    if compared:
        return (
            f"Slurm's accounting agrees with the records of {len(agree)} of "
            f"{pluralize(len(compared), 'run')} that can be compared."
        )
    return "No run was long enough to be compared with Slurm's accounting." if by_slurm else None


def build(data: ReportData) -> Section:
    if not data.shown:
        return Section("compared", "", [])
    main = main_table(data.shown)
    title = "Speed, cores and quality" if "instances/s" in main.columns else "Time and cores"
    accounting = describe_accounting(data.runs, data.found.unaccounted)
    notes = [*main_notes(data.shown), *([accounting] if accounting else [])]
    return Section(
        "compared", title, [replace(main, sortable=True), Paragraph(" ".join(notes), True)]
    )
