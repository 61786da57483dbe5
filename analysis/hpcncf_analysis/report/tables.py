"""Tables of a report: configurations, runs, memory, quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hpcncf_analysis import configurations
from hpcncf_analysis.configurations import CROWD, MOST, Configuration, Table, by_series, called
from hpcncf_analysis.formatting import (
    NONE,
    THIN,
    core_time,
    cores,
    duration,
    hundredths,
    interval,
    metric,
    number,
    percent,
    score,
    times,
)
from hpcncf_analysis.usl import confidence

Row = Mapping[str, Any]

ENVIRONMENT: Final = (
    "node",
    "cpu_model",
    "commit",
    "python",
    "torch",
    "device",
    "backend",
    "parameters",
)


# What a command may report that our own training has, too, and its heading here.
TOLD: Final = {
    "instances_per_s": "instances/s",
    "loss": "loss",
    "hr10": "HR@10",
    "ndcg10": "NDCG@10",
}
# These say how far a command was, not what came of it.
HOW_FAR: Final = {"metric_epoch", "metric_epochs", "metric_step"}
MOST_TOLD: Final = 8
SCALING: Final = ("speed-up", "parallel efficiency")
LENGTHS: Final = {"commit": 10}


def main_table(shown: Sequence[Configuration]) -> Table:
    """Speed, what it cost, and the quality beside it; without training, time for speed."""
    if all(one.is_command for one in shown):
        told = reported(shown)
        heads = [TOLD.get(name, called(name)) for name in told]
        columns = ["configuration", "elapsed", *heads, *_CORE_COLUMNS, "core time"]
        keys = _keys(shown, ["", "elapsed_s", *told, *_CORE_KEYS, "core_hours"])
        return _numbered(Table(columns, [_command_row(one, told) for one in shown], keys=keys))
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
    return {name for name, sizes in by_series(shown).items() if len(sizes) > 1}


def main_notes(shown: Sequence[Configuration]) -> list[str]:
    """What a reader of the main table may ask."""
    notes = [_repeats_note({len(one.rows) for one in shown})]
    if compared_sizes(shown) and not all(one.is_command for one in shown):
        notes.append("Speed-up is against the fewest cores with otherwise equal settings.")
    without = [one for one in shown if one.median("cpu_efficiency_peak") is None]
    if without:
        windows = [row.get("peak_window_s") for one in without for row in one.rows]
        longest = max((window for window in windows if window), default=None)
        notes.append(f"No peak where a run was shorter than its window, {duration(longest)}.")
    if any(one.rows[0].get("epoch_extrapolated") for one in shown):
        notes.append("≈: an epoch extrapolated from the speed, for max_steps cut all short.")
    if len(shown) > CROWD:
        notes.append("In the figures, numbers stand for the rows.")
    if len(shown) > MOST:
        notes.append(f"The figures show the {MOST} fastest only.")
    return notes


def _repeats_note(repeats: set[int]) -> str:
    if repeats <= {1}:
        return "One run each: no interval."
    up_to = "up to " if len(repeats) > 1 else ""
    most = max(repeats)
    return (
        f"Medians over {up_to}{most} repeats, [smallest–largest]; of {most} repeats that range "
        f"holds the median of endless ones with {percent(confidence(most))} confidence."
    )


def _numbered(table: Table) -> Table:
    """The same with the numbers by which crowded figures name the configurations."""
    if len(table.rows) <= CROWD:
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
        *(cores(one.median(f"cores_{which}")) for which in ("allocated", "usable")),
        hundredths(one.median("cores_used")),
        percent(efficiency) + flag,
        percent(one.median("cpu_efficiency_peak")),
    ]


def _scaling_cells(one: Configuration, compared: set[str]) -> list[str]:
    if one.series not in compared:
        return [NONE, NONE]
    return [times(one.median("speedup")), percent(one.median("parallel_efficiency"))]


def _main_row(one: Configuration, compared: set[str]) -> list[str]:
    return [
        one.label,
        with_interval(one, "instances_per_s"),
        score(one.median("hr10")),
        score(one.median("ndcg10")),
        *(_scaling_cells(one, compared) if compared else []),
        *_core_cells(one),
        percent(one.median("cpu_efficiency_training")),
        _about(one) + number(one.median("seconds_per_epoch")),
        _about(one) + number(one.median("core_s_per_epoch")),
    ]


def _about(one: Configuration) -> str:
    return f"≈{THIN}" if one.rows[0]["epoch_extrapolated"] else ""


def reported(shown: Sequence[Configuration]) -> list[str]:
    """The figures that commands told of themselves, as many as a table has room for."""
    known = {name for one in shown for name in one.figures}
    metrics = configurations.metrics(row for one in shown for row in one.rows)
    return [name for name in [*TOLD, *metrics] if name in known - HOW_FAR][:MOST_TOLD]


def _command_row(one: Configuration, told: Sequence[str]) -> list[str]:
    return [
        one.label,
        duration(one.median("elapsed_s")),
        *(metric(one.median(name)) for name in told),
        *_core_cells(one),
        core_time(one.median("core_hours")),
    ]


def with_interval(one: Configuration, name: str) -> str:
    low, high = (one.figures.get(f"{name}_{end}") for end in ("low", "high"))
    return f"{number(one.median(name))}\n{interval(low, high, number)}".strip()


def quality_table(shown: Sequence[Configuration]) -> Table | None:
    """HR@10 and NDCG@10 beside what a table of counts reaches; None where none was evaluated."""
    judged = [one for one in shown if one.median("hr10") is not None]
    if not judged:
        return None
    names = ("hr10", "ndcg10", "hr10_unseen", "loss")
    rows = [[one.label, *(score(one.median(name)) for name in names)] for one in judged]
    for one in [one for one in judged if one.median("baseline_hr10") is not None][:1]:
        counts = (score(one.median(f"baseline_{name}")) for name in ("hr10", "ndcg10"))
        rows.append(["count table (no training)", *counts, NONE, NONE])
    return Table(["configuration", "HR@10", "NDCG@10", "HR@10 unseen", "loss"], rows)


def ranks_table(shown: Sequence[Configuration]) -> Table | None:
    """What the ranks' steps gave to synchronising; None where no run had several."""
    several = [one for one in shown if one.median("sync_ms_per_step") is not None]
    rows = [
        [
            one.label,
            str(one.rows[0]["sync_over"]),
            number(one.median("sync_ms_per_step")),
            percent(one.median("sync_share")),
            number((one.median("sync_bytes_per_step") or 0.0) / 1024),
        ]
        for one in several
    ]
    columns = ["configuration", "over", "ms/step", "of the step", "KiB/step of each rank"]
    return Table(columns, rows) if rows else None


def quality_note(runs: Sequence[Row]) -> str | None:
    """What the data set can tell about recommendation, where its own figures say it."""
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
        f"{percent(seen)} of the {row['test_rows']:,} test pairs also occur in training, so "
        f"HR@10 here is mostly memory.{table} This data set measures speed well and recommendation "
        "badly: look at HR@10 unseen, and judge recommendation on data with a real task."
    )


def epoch_table(epochs: Sequence[Row], shown: Sequence[Configuration]) -> Table | None:
    """The course of each configuration's first completed run."""
    labels = {one.rows[0]["run_id"]: one.label for one in shown}
    rows = [
        [
            labels[row["run_id"]],
            str(row["epoch"] + 1),
            number(row["training_s"]),
            number(row["evaluation_s"]),
            score(row["loss"]),
            *(score(row[name]) for name in ("hr10", "ndcg10", "hr10_unseen")),
        ]
        for row in epochs
        if row["run_id"] in labels
    ]
    columns = ["configuration", "epoch", "training s", "evaluation s", "loss"]
    columns += ["HR@10", "NDCG@10", "HR@10 unseen"]
    return Table(columns, rows) if rows else None


def environment(runs: Sequence[Row]) -> list[tuple[str, str]]:
    """What the runs ran on, each value once; a commit by its first letters."""
    named = [
        (name, sorted({str(row.get(name))[: LENGTHS.get(name)] for row in runs if row.get(name)}))
        for name in ENVIRONMENT
    ]
    return [(name.replace("_", " "), "; ".join(values)) for name, values in named if values]
