"""Every run, what became of it, interrupted attempts, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hpcncf.table import Table
from hpcncf.text import pluralize
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
    ReportData,
    Section,
    SectionPart,
)

Row = Mapping[str, Any]

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
TEXTS: Final = frozenset({"settings", "state", "what happened"})
ATTEMPT_COLUMNS: Final = ("run", "attempt", "ended", "on", "elapsed", "CPU efficiency", "core time")
ATTEMPT_TEXTS: Final = frozenset({"ended", "on", "what happened"})
# So many runs of a warning are named.
NAMED: Final = 3
# More rows than these are closed until somebody asks for them.
MAX_OPEN_ROWS: Final = 12


def build(data: ReportData) -> Section:
    table = every_run_table(data.found.runs)
    note = Paragraph("A heading sorts the table, if the browser runs scripts.", note=True)
    parts: list[SectionPart] = [replace(table, sortable=True), note]
    return Section(
        "runs", "Every run", parts if table.rows else [], folded=len(table.rows) > MAX_OPEN_ROWS
    )


def build_unfinished(data: ReportData) -> Section:
    waiting = [r for r in data.found.runs if r["state"] != "completed" and not r["retired"]]
    parts = [every_run_table(waiting)] if waiting else []
    return Section("unfinished", "Runs that are not complete", parts)


def build_attempts(data: ReportData) -> Section:
    table, cost = attempt_table(data.found.attempts), describe_interruption_cost(data.runs)
    parts: list[SectionPart] = [*([Paragraph(cost)] if cost else []), table]
    return Section("attempts", "Interrupted and begun again", parts if table.rows else [])


def build_warnings(data: ReportData) -> Section:
    table = warnings_table(data.found.runs)
    parts: list[SectionPart] = [table] if table else []
    if data.found.skipped:
        parts += [Paragraph("Files that were skipped:"), BulletList(data.found.skipped)]
    return Section("warnings", "Warnings", parts)


def every_run_table(runs: Sequence[Row]) -> Table:
    """Table of every planned run, whatever its outcome; empty columns are dropped later."""
    rows = []
    for row in runs:
        varied = ", ".join(f"{key.split('.')[-1]}: {value}" for key, value in row["varied"].items())
        cells = [
            row["run_id"],
            varied or row["command"] or "the base setting",
            str(row["repeat"]),
            row["state"] + (" (retired)" if row["retired"] else ""),
            *(show(row.get(column)) for column, show in FIGURES.values()),
        ]
        # How little was measured is no news if the run's end is what matters.
        ended_well = row["state"] == "completed"
        warned = [text for text in row["warnings"] if ended_well or TOO_SHORT not in text]
        ends = [row["reason"], row["progress"], row["stale"], *warned]
        rows.append([*cells, "; ".join(text for text in ends if text)])
    figures = [column for column, _ in FIGURES.values()]
    keys = [[None, None, row["repeat"], None, *map(row.get, figures), None] for row in runs]
    return Table([*COLUMNS, *FIGURES, "what happened"], rows, TEXTS, keys)


def warnings_table(runs: Sequence[Row]) -> Table | None:
    """Table of distinct warnings with the runs that gave them, the most frequent first."""
    by_text: dict[str, list[str]] = {}
    for row in runs:
        for text in row["warnings"]:
            by_text.setdefault(text, []).append(row["run_id"])
    rows = []
    for text, names in sorted(by_text.items(), key=lambda each: -len(each[1])):
        many = f"{pluralize(len(names), 'run')}, as {names[0]}"
        rows.append([", ".join(names) if len(names) <= NAMED else many, text])
    return Table(["runs", "warning"], rows, frozenset({"warning"})) if rows else None


def attempt_table(attempts: Sequence[Row]) -> Table:
    """Table of all attempts of runs that had more than one."""
    several = {row["run_id"] for row in attempts if row["attempt"] > 1}
    rows = []
    for row in attempts:
        if row["run_id"] not in several:
            continue
        resumed, from_progress = row["resumed_epoch"], row["figures_from"] == "progress"
        happened = [
            "" if resumed is None else f"resumed in epoch {resumed + 1}",
            row["error"] or "",
            "figures from its last sign of life" if from_progress else "",
        ]
        cells = [
            row["run_id"],
            str(row["attempt"]),
            row["outcome"],
            row["node"] or NONE,
            format_duration(row["elapsed_s"]),
            format_percent(row["cpu_efficiency"]),
            format_core_time(row["core_hours"]),
            "; ".join(text for text in happened if text),
        ]
        rows.append(cells)
    return Table([*ATTEMPT_COLUMNS, "what happened"], rows, ATTEMPT_TEXTS)


def describe_interruption_cost(runs: Sequence[Row]) -> str | None:
    """Sentence on the cost of interruptions; None if there were none."""
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
