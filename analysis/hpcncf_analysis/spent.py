"""Time outside of training, interrupted attempts, and Slurm's own accounting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from hpcncf_analysis.configurations import Configuration, Table, pluralize
from hpcncf_analysis.formatting import (
    NONE,
    format_core_time,
    format_duration,
    format_number,
    format_percent,
)

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

    Medians over a configuration's runs; None where no epoch is told.
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
        row["node"] or NONE,
        format_duration(row["elapsed_s"]),
        format_percent(row["cpu_efficiency"]),
        format_core_time(row["core_hours"]),
        _describe_end(row),
    ]


def _describe_end(row: Row) -> str:
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
