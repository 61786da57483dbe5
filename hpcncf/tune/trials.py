"""What came of the asks, by the runs' records, and which quality does not hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf.tune.grid import Grid
from hpcncf.tune.values import Ask, Fate, Point, Trial
from hpcncf_analysis import summary
from hpcncf_analysis.advice.quality import holds_quality
from hpcncf_analysis.summary import Configuration

Row = Mapping[str, Any]

FATES: Final[dict[str, Fate]] = {
    "completed": "completed",
    "pending": "under way",
    "running": "under way",
    "unknown": "under way",
    "failed": "failed",
    "timeout": "failed",
    "out_of_memory": "failed",
    "planned": "open",
    "stopped": "open",
    "cancelled": "open",
    "node_failed": "open",
    "lost": "open",
}
# What was cut off so often by no fault of its own is given up.
ATTEMPTS: Final = 3


def of_trials(grid: Grid, asks: Sequence[Ask], rows: Mapping[str, Row]) -> list[Trial]:
    """`rows`: of the table of runs, by run id. In the order asked."""
    points = {point.index: point for point in grid.points}
    counted = set[str]()
    found = []
    for ask in asks:
        run_id = grid.run(ask).id
        row = rows.get(run_id)
        # Two points may be one and the same run when cut: it is paid once.
        paid = 0.0 if row is None or run_id in counted else _charged(row, points.get(ask.point))
        counted.add(run_id)
        whole_steps = points[ask.point].whole_steps if ask.point in points else 0
        found.append(_trial(ask, row, paid, ask.steps or whole_steps))
    return found


def _charged(row: Row, point: Point | None) -> float:
    """Core-hours of all attempts, and of their GPUs as many as an hour of one counts for; None: a
    point that cannot run here any more."""
    core_hours = float(row["core_hours_all"] or 0.0)
    return core_hours if point is None else core_hours * point.charged / point.cores


def _trial(ask: Ask, row: Row | None, core_hours: float, steps: int) -> Trial:
    if row is None:
        return Trial(ask, "open")
    fate = FATES[row["state"]]
    if fate == "open" and (row["attempts"] or 0) >= ATTEMPTS:
        fate = "failed"
    if fate != "completed":
        reason = f"{row['state']}{', ' if row['reason'] else ''}{row['reason']}"
        return Trial(ask, fate, core_hours, reason=reason)
    if not row["seconds_per_epoch"] or not row["training_s"]:
        return Trial(ask, "failed", core_hours, reason="its records tell no speed")
    return Trial(
        ask=ask,
        fate="completed",
        core_hours=core_hours,
        epoch_s=row["seconds_per_epoch"],
        training_s=row["training_s"],
        elapsed_s=row["elapsed_s"],
        apart_s=(row["evaluation_s"] or 0.0) + (row["checkpoint_s"] or 0.0),
        steps=steps,
        hr10=row["hr10"],
    )


def whole_runs(
    grid: Grid, trials: Sequence[Trial], rows: Mapping[str, Row]
) -> list[tuple[int, Configuration]]:
    """Point and figures of each configuration that ran as the job file has it."""
    ids = {
        grid.run(trial.ask).id: trial.ask.point
        for trial in trials
        if trial.whole and trial.fate == "completed"
    }
    found = summary.configurations(rows[run_id] for run_id in ids)
    return [(ids[one.rows[0]["run_id"]], one) for one in found]


def unsound_trials(grid: Grid, whole: Sequence[tuple[int, Configuration]]) -> frozenset[str]:
    """The classes of which some whole run's quality is worse than chance explains."""
    classes = {point.index: str(point.quality) for point in grid.points}
    all_of_them = [one for _, one in whole]
    return frozenset(classes[point] for point, one in whole if not holds_quality(one, all_of_them))
