"""The main table: speed, what it cost, and the quality beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hpcncf_analysis import configurations
from hpcncf_analysis.configurations import (
    MAX_DRAWN,
    MAX_LABELLED,
    Configuration,
    Table,
    format_column_name,
    group_by_series,
    pluralize,
)
from hpcncf_analysis.formatting import (
    NONE,
    THIN,
    format_core_time,
    format_cores,
    format_duration,
    format_hundredths,
    format_interval,
    format_metric,
    format_number,
    format_percent,
    format_ratio,
    format_score,
)
from hpcncf_analysis.report.section import (
    Paragraph,
    ReportData,
    Section,
    TableBlock,
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


SCALING: Final = ("speed-up", "parallel efficiency")


def main_table(shown: Sequence[Configuration]) -> Table:
    """Speed, what it cost, and the quality beside it; without training, time for speed."""
    if all(one.is_command for one in shown):
        metrics = reported_metrics(shown)
        heads = [METRIC_HEADINGS.get(name, format_column_name(name)) for name in metrics]
        columns = ["configuration", "elapsed", *heads, *_CORE_COLUMNS, "core time"]
        keys = _keys(shown, ["", "elapsed_s", *metrics, *_CORE_KEYS, "core_hours"])
        return _numbered(Table(columns, [_command_row(one, metrics) for one in shown], keys=keys))
    compared = compared_sizes(shown)
    columns = [
        "configuration",
        "instances/s",
        "HR@10",
        "NDCG@10",
        *(SCALING if compared else []),
        *_CORE_COLUMNS,
        "CPU efficiency: in training",
        "s/epoch",
        "core-s/epoch",
    ]
    names = ["", *_SPEED_KEYS, *(_SCALING_KEYS if compared else []), *_CORE_KEYS, *_COST_KEYS]
    rows = [_main_row(one, compared) for one in shown]
    return _numbered(Table(columns, rows, keys=_keys(shown, names)))


# The figures behind the columns, by which a reader sorts.
_SPEED_KEYS: Final = ("instances_per_s", "hr10", "ndcg10")


_SCALING_KEYS: Final = ("speedup", "parallel_efficiency")


_CORE_KEYS: Final = (
    "cores_allocated",
    "cores_usable",
    "cores_used",
    "cpu_efficiency",
    "cpu_efficiency_peak",
)


_COST_KEYS: Final = ("cpu_efficiency_training", "seconds_per_epoch", "core_s_per_epoch")


def _keys(shown: Sequence[Configuration], figures: Sequence[str]) -> list[list[float | None]]:
    return [[one.median(name) for name in figures] for one in shown]


def compared_sizes(shown: Sequence[Configuration]) -> set[str]:
    """The series of two sizes or more: elsewhere a speed-up compares a size with itself."""
    return {name for name, sizes in group_by_series(shown).items() if len(sizes) > 1}


def main_notes(shown: Sequence[Configuration]) -> list[str]:
    """What a reader of the main table may ask."""
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
        notes.append("≈: an epoch extrapolated from the speed, for max_steps cut all short.")
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


def _numbered(table: Table) -> Table:
    """The same with the numbers by which crowded figures name the configurations."""
    if len(table.rows) <= MAX_LABELLED:
        return table
    rows = [[f"{number}: {row[0]}", *row[1:]] for number, row in enumerate(table.rows, start=1)]
    return replace(table, rows=rows)


_CORE_COLUMNS: Final = [
    "cores: allocated",
    "cores: usable",
    "cores: used",
    "CPU efficiency: whole run",
    "CPU efficiency: peak",
]


def _core_cells(one: Configuration) -> list[str]:
    efficiency = one.median("cpu_efficiency")
    flag = " !" if efficiency is not None and efficiency > 1 else ""
    return [
        *(format_cores(one.median(f"cores_{which}")) for which in ("allocated", "usable")),
        format_hundredths(one.median("cores_used")),
        format_percent(efficiency) + flag,
        format_percent(one.median("cpu_efficiency_peak")),
    ]


def _scaling_cells(one: Configuration, compared: set[str]) -> list[str]:
    if one.series not in compared:
        return [NONE, NONE]
    return [format_ratio(one.median("speedup")), format_percent(one.median("parallel_efficiency"))]


def _main_row(one: Configuration, compared: set[str]) -> list[str]:
    return [
        one.label,
        format_median_and_range(one, "instances_per_s"),
        format_score(one.median("hr10")),
        format_score(one.median("ndcg10")),
        *(_scaling_cells(one, compared) if compared else []),
        *_core_cells(one),
        format_percent(one.median("cpu_efficiency_training")),
        _extrapolation_mark(one) + format_number(one.median("seconds_per_epoch")),
        _extrapolation_mark(one) + format_number(one.median("core_s_per_epoch")),
    ]


def _extrapolation_mark(one: Configuration) -> str:
    return f"≈{THIN}" if one.rows[0]["epoch_extrapolated"] else ""


def reported_metrics(shown: Sequence[Configuration]) -> list[str]:
    """The figures that commands reported, as many as a table has room for."""
    known = {name for one in shown for name in one.figures}
    metrics = configurations.numeric_metrics(row for one in shown for row in one.rows)
    return [name for name in [*METRIC_HEADINGS, *metrics] if name in known - PROGRESS_METRICS][
        :MAX_METRICS
    ]


def _command_row(one: Configuration, metrics: Sequence[str]) -> list[str]:
    return [
        one.label,
        format_duration(one.median("elapsed_s")),
        *(format_metric(one.median(name)) for name in metrics),
        *_core_cells(one),
        format_core_time(one.median("core_hours")),
    ]


def format_median_and_range(one: Configuration, name: str) -> str:
    low, high = (one.figures.get(f"{name}_{end}") for end in ("low", "high"))
    return f"{format_number(one.median(name))}\n{format_interval(low, high, format_number)}".strip()


def describe_accounting(runs: Sequence[Row], unaccounted: Sequence[str]) -> str | None:
    """Whether Slurm's accounting bears the records out; None where Slurm ran nothing."""
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
        "compared", title, [TableBlock(main, sortable=True), Paragraph(" ".join(notes), True)]
    )
