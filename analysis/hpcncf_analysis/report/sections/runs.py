"""Every run, what became of it, interrupted attempts, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis.configurations import Table, pluralize
from hpcncf_analysis.formatting import (
    NONE,
    format_core_time,
    format_duration,
    format_mebibytes,
    format_number,
    format_percent,
    format_score,
)
from hpcncf_analysis.report.section import (
    BulletList,
    Paragraph,
    Part,
    ReportData,
    Section,
    TableBlock,
)

Row = Mapping[str, Any]

TEXTS: Final = frozenset({"settings", "state", "what happened"})


# As the monitor says it.
TOO_SHORT: Final = "too short to judge"


COLUMNS: Final = ("run", "settings", "repeat", "state")


FIGURES: Final = {
    "elapsed": ("elapsed_s", format_duration),
    "of the limit": ("time_efficiency", format_percent),
    "instances/s": ("instances_per_s", format_number),
    "CPU efficiency": ("cpu_efficiency", format_percent),
    "peak memory": ("memory_peak_mib", format_mebibytes),
    "of what was asked": ("memory_efficiency", format_percent),
    "HR@10": ("hr10", format_score),
}


# Shown only if a run has them.
OF_TRAINING: Final = ("instances/s", "HR@10")


NAMED: Final = 3


def every_run_table(runs: Sequence[Row]) -> Table:
    """Every planned run, whatever became of it."""
    figures = {
        name: (column, show)
        for name, (column, show) in FIGURES.items()
        if name not in OF_TRAINING or any(row.get(column) is not None for row in runs)
    }
    keys = [column for column, _ in figures.values()]
    return Table(
        [*COLUMNS, *figures, "what happened"],
        [
            [
                *_run_cells(row),
                *(show(row.get(column)) for column, show in figures.values()),
                _describe_end(row),
            ]
            for row in runs
        ],
        TEXTS,
        [[None, None, row["repeat"], None, *map(row.get, keys), None] for row in runs],
    )


def _run_cells(row: Row) -> list[str]:
    varied = ", ".join(f"{key.split('.')[-1]}: {value}" for key, value in row["varied"].items())
    return [
        row["run_id"],
        varied or row["command"] or "the base setting",
        str(row["repeat"]),
        row["state"] + (" (retired)" if row["retired"] else ""),
    ]


def _describe_end(row: Row) -> str:
    """Its end, and its warnings: without the word on how little was measured where the run's end
    is what matters."""
    ended_well = row["state"] == "completed"
    warned = [text for text in row["warnings"] if ended_well or TOO_SHORT not in text]
    return "; ".join(
        text for text in [row["reason"], row["progress"], row["stale"], *warned] if text
    )


def warnings_table(runs: Sequence[Row]) -> Table | None:
    """Each warning once, with the runs that gave it, the most frequent first."""
    by_text: dict[str, list[str]] = {}
    for row in runs:
        for text in row["warnings"]:
            by_text.setdefault(text, []).append(row["run_id"])
    ordered = sorted(by_text.items(), key=lambda each: -len(each[1]))
    rows = [[_run_list(runs_), text] for text, runs_ in ordered]
    return Table(["runs", "warning"], rows, frozenset({"warning"})) if rows else None


def _run_list(runs: Sequence[str]) -> str:
    if len(runs) <= NAMED:
        return ", ".join(runs)
    return f"{pluralize(len(runs), 'run')}, as {runs[0]}"


# More rows than these are closed until somebody asks for them.
MAX_OPEN_ROWS: Final = 12


ATTEMPT_TEXTS: Final = frozenset({"ended", "on", "what happened"})


def attempt_table(attempts: Sequence[Row]) -> Table:
    """Every attempt at the runs that had more than one."""
    several = {row["run_id"] for row in attempts if row["attempt"] > 1}
    columns = ["run", "attempt", "ended", "on", "elapsed", "CPU efficiency", "core time"]
    rows = [_attempt_row(row) for row in attempts if row["run_id"] in several]
    return Table([*columns, "what happened"], rows, ATTEMPT_TEXTS)


def _attempt_row(row: Row) -> list[str]:
    return [
        row["run_id"],
        str(row["attempt"]),
        row["outcome"],
        row["node"] or NONE,
        format_duration(row["elapsed_s"]),
        format_percent(row["cpu_efficiency"]),
        format_core_time(row["core_hours"]),
        _describe_attempt(row),
    ]


def _describe_attempt(row: Row) -> str:
    resumed = row["resumed_epoch"]
    parts = [
        "" if resumed is None else f"resumed in epoch {resumed + 1}",
        row["error"] or "",
        "figures from its last sign of life" if row["figures_from"] == "progress" else "",
    ]
    return "; ".join(part for part in parts if part)


def describe_interruption_cost(runs: Sequence[Row]) -> str | None:
    """What interruptions cost; None where there were none."""
    again = [row for row in runs if row["attempts"] > 1 and row["core_hours_all"] is not None]
    if not again:
        return None
    spent = sum(row["core_hours_all"] for row in again)
    last = sum(row["core_hours"] or 0.0 for row in again)
    return (
        f"{pluralize(len(again), 'run')} took more than one attempt: {format_core_time(spent)} in "
        f"all, {format_core_time(spent - last)} of it before the last one. A run's figures are its "
        "last attempt's."
    )


def build_unfinished(data: ReportData) -> Section:
    waiting = [r for r in data.found.runs if r["state"] != "completed" and not r["retired"]]
    parts = [TableBlock(every_run_table(waiting))] if waiting else []
    return Section("unfinished", "Runs that are not complete", parts)


def build_attempts(data: ReportData) -> Section:
    table, cost = attempt_table(data.found.attempts), describe_interruption_cost(data.runs)
    parts: list[Part] = [*([Paragraph(cost)] if cost else []), TableBlock(table)]
    return Section("attempts", "Interrupted and begun again", parts if table.rows else [])


def build(data: ReportData) -> Section:
    table = every_run_table(data.found.runs)
    note = Paragraph("A heading sorts the table, if the browser runs scripts.", note=True)
    parts: list[Part] = [TableBlock(table, sortable=True), note]
    return Section(
        "runs", "Every run", parts if table.rows else [], folded=len(table.rows) > MAX_OPEN_ROWS
    )


def build_warnings(data: ReportData) -> Section:
    table = warnings_table(data.found.runs)
    parts: list[Part] = [TableBlock(table)] if table else []
    if data.found.skipped:
        parts += [Paragraph("Files that were skipped:"), BulletList(data.found.skipped)]
    return Section("warnings", "Warnings", parts)
