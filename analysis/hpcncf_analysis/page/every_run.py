"""Every planned run in a row, and what the runs warn of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.labels import counted
from hpcncf_analysis.table import Table

Row_every_run = Mapping[str, Any]

TEXTS_EVERY_RUN: Final = frozenset({"settings", "state", "what happened"})
# As the monitor says it.
TOO_SHORT_EVERY_RUN: Final = "too short to judge"
COLUMNS: Final = ("run", "settings", "repeat", "state")
FIGURES: Final = {
    "elapsed": ("elapsed_s", words.duration),
    "of the limit": ("time_efficiency", words.percent),
    "instances/s": ("instances_per_s", words.number),
    "CPU efficiency": ("cpu_efficiency", words.percent),
    "peak memory": ("memory_peak_mib", words.mebibytes),
    "of what was asked": ("memory_efficiency", words.percent),
    "HR@10": ("hr10", words.score),
}
# Told only where a run has them.
OF_TRAINING_EVERY_RUN: Final = ("instances/s", "HR@10")
NAMED: Final = 3


def table_every_run(runs: Sequence[Row_every_run]) -> Table:
    """Every planned run, whatever became of it."""
    figures = {
        name: (column, show)
        for name, (column, show) in FIGURES.items()
        if name not in OF_TRAINING_EVERY_RUN or any(row.get(column) is not None for row in runs)
    }
    keys = [column for column, _ in figures.values()]
    return Table(
        [*COLUMNS, *figures, "what happened"],
        [
            [*_who(row), *(show(row.get(column)) for column, show in figures.values()), _told(row)]
            for row in runs
        ],
        TEXTS_EVERY_RUN,
        [[None, None, row["repeat"], None, *map(row.get, keys), None] for row in runs],
    )


def _who(row: Row_every_run) -> list[str]:
    varied = ", ".join(f"{key.split('.')[-1]}: {value}" for key, value in row["varied"].items())
    return [
        row["run_id"],
        varied or row["command"] or "the base setting",
        str(row["repeat"]),
        row["state"] + (" (retired)" if row["retired"] else ""),
    ]


def _told(row: Row_every_run) -> str:
    """Its end, and its warnings: without the word on how little was measured where the run's end
    is what matters."""
    ended_well = row["state"] == "completed"
    warned = [text for text in row["warnings"] if ended_well or TOO_SHORT_EVERY_RUN not in text]
    return "; ".join(
        text for text in [row["reason"], row["progress"], row["stale"], *warned] if text
    )


def warnings(runs: Sequence[Row_every_run]) -> Table | None:
    """Each warning once, with the runs that gave it, the most frequent first."""
    by_text: dict[str, list[str]] = {}
    for row in runs:
        for text in row["warnings"]:
            by_text.setdefault(text, []).append(row["run_id"])
    ordered = sorted(by_text.items(), key=lambda each: -len(each[1]))
    rows = [[_which(runs_), text] for text, runs_ in ordered]
    return Table(["runs", "warning"], rows, frozenset({"warning"})) if rows else None


def _which(runs: Sequence[str]) -> str:
    if len(runs) <= NAMED:
        return ", ".join(runs)
    return f"{counted(len(runs), 'run')}, as {runs[0]}"
