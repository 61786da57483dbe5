"""What the report says of interrupted runs, and of Slurm's own accounting. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.labels import counted
from hpcncf_analysis.table import Table

Row = Mapping[str, Any]

TEXTS: Final = frozenset({"ended", "on", "what happened"})


def attempt_table(attempts: Sequence[Row]) -> Table:
    """Every attempt at the runs that had more than one."""
    several = {row["run_id"] for row in attempts if row["attempt"] > 1}
    columns = ["run", "attempt", "ended", "on", "elapsed", "CPU efficiency", "core time"]
    rows = [_attempt_row(row) for row in attempts if row["run_id"] in several]
    return Table([*columns, "what happened"], rows, TEXTS)


def _attempt_row(row: Row) -> list[str]:
    return [
        row["run_id"],
        str(row["attempt"]),
        row["outcome"],
        row["node"] or words.NONE,
        words.duration(row["elapsed_s"]),
        words.percent(row["cpu_efficiency"]),
        words.core_time(row["core_hours"]),
        _told(row),
    ]


def _told(row: Row) -> str:
    resumed = row["resumed_epoch"]
    parts = [
        "" if resumed is None else f"resumed in epoch {resumed + 1}",
        row["error"] or "",
        "figures from its last sign of life" if row["figures_from"] == "progress" else "",
    ]
    return "; ".join(part for part in parts if part)


def price(runs: Sequence[Row]) -> str | None:
    """What interruptions cost; None where there were none."""
    again = [row for row in runs if row["attempts"] > 1 and row["core_hours_all"] is not None]
    if not again:
        return None
    spent = sum(row["core_hours_all"] for row in again)
    last = sum(row["core_hours"] or 0.0 for row in again)
    return (
        f"{counted(len(again), 'run')} took more than one attempt: {words.core_time(spent)} in "
        f"all, {words.core_time(spent - last)} of it before the last one. A run's figures are its "
        "last attempt's."
    )


def accounting(runs: Sequence[Row], unaccounted: Sequence[str]) -> str | None:
    """Whether Slurm's accounting bears the records out; None where Slurm ran nothing."""
    if unaccounted:
        return f"Slurm's accounting cannot be compared: {unaccounted[0]}."
    by_slurm = [row for row in runs if row["slurm_state"]]
    compared = [row for row in by_slurm if row["slurm_agrees"] is not None]
    agree = [row for row in compared if row["slurm_agrees"]]
    if compared:
        return (
            f"Slurm's accounting agrees with the records of {len(agree)} of "
            f"{counted(len(compared), 'run')} that can be compared."
        )
    return "No run was long enough to be compared with Slurm's accounting." if by_slurm else None
