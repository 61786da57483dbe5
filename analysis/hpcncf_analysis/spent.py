"""What a run's time was spent on: beside training, start-up, evaluation and checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from hpcncf_analysis import words
from hpcncf_analysis.summary import Configuration
from hpcncf_analysis.table import Table

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
            *(words.number(one.median(name) or None) for name in PARTS.values()),
            words.number(one.median("seconds_per_evaluation")),
            words.number(one.median("evaluation_pairs_per_s")),
        ]
        for one in shown
        if one.median("training_s") is not None
    ]
    columns = [*(f"seconds: {part}" for part in PARTS), "evaluation: s/epoch"]
    return Table(["configuration", *columns, "evaluation: pairs/s"], rows) if rows else None


def pauses(epochs: Sequence[Mapping[str, Any]], shown: Sequence[Configuration]) -> Table | None:
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
            share = words.percent(paused / trained if trained else None)
            after = words.number(median(later) if later else None)
            kept = [words.percent(one.median(name)) for name in STEADY.values()]
            rows.append([one.label, words.number(first), after, share, *kept])
    return Table(["configuration", *FIRST_BATCH, *STEADY], rows) if rows else None


def times_note(shown: Sequence[Configuration]) -> str | None:
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
