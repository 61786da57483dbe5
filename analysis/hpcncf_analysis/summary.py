"""Runs become configurations: repeats of one setting together, with their medians. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

Row = Mapping[str, Any]

# Settings in the order in which a label names them; loader always, the others where they vary.
NAMED: Final = (
    "loader",
    "num_workers",
    "engine",
    "sync",
    "optimizer",
    "batch",
    "negatives",
    "lr",
    "epochs",
    "max_steps",
    "device",
    "backend",
    "evaluation",
    "checkpoint_every",
    "gmf_width",
    "mlp_width",
    "layers",
    "dropout",
    "embedding_std",
    "seed",
    "data_title",
    "command",
)
LONGEST: Final = 32
# With more configurations than this, figures name them by number: labels would cover each other.
CROWD: Final = 8
MOST: Final = 24
BARE: Final = {"loader", "engine", "data_title", "command"}
FIGURES: Final = (
    "instances_per_s",
    "seconds_per_epoch",
    "core_s_per_epoch",
    "instances_per_epoch",
    "elapsed_s",
    "startup_s",
    "cores_allocated",
    "cores_usable",
    "cores_used",
    "cpu_efficiency",
    "cpu_efficiency_peak",
    "cpu_efficiency_training",
    "core_hours",
    "memory_peak_mib",
    "loss",
    "hr10",
    "ndcg10",
    "hr10_unseen",
    "baseline_hr10",
    "baseline_ndcg10",
    *(f"{phase}_share" for phase in ("input", "forward", "backward", "sync", "optimizer", "other")),
)


@dataclass(frozen=True)
class Spread:
    """The median over repeats, and the smallest and largest; those are None for one repeat."""

    median: float
    low: float | None
    high: float | None
    repeats: int


def spread(values: Iterable[float | None]) -> Spread | None:
    """None where any repeat lacks the figure: the others' median would not stand for all."""
    found = list(values)
    known = sorted(value for value in found if value is not None)
    if not known or len(known) < len(found):
        return None
    several = len(known) > 1
    return Spread(
        median=median(known),
        low=known[0] if several else None,
        high=known[-1] if several else None,
        repeats=len(known),
    )


@dataclass(frozen=True)
class Configuration:
    """One grid point: its completed repeats, told apart from the others by its label."""

    key: str
    shape: str
    """`1 core`, `2 ranks × 1 core`."""
    series: str
    """What is compared over cores: all that the label says but shape and threads."""
    label: str
    rows: Sequence[Row]
    figures: Mapping[str, Spread]

    def median(self, name: str) -> float | None:
        found = self.figures.get(name)
        return found.median if found else None

    @property
    def cores(self) -> float:
        return self.median("cores_allocated") or 1.0

    @property
    def ranks(self) -> int:
        return int(self.rows[0]["world_size"])

    @property
    def is_command(self) -> bool:
        return bool(self.rows[0]["workload"] == "command")

    @property
    def speed(self) -> float | None:
        """Instances per second; for a command, runs per hour."""
        if not self.is_command:
            return self.median("instances_per_s")
        elapsed_s = self.median("elapsed_s")
        return 3600 / elapsed_s if elapsed_s else None


def marks(configurations: Sequence[Configuration]) -> dict[str, str]:
    """Configuration key -> what a figure calls it: its label, or its number in the table.

    Of very many only the fastest are named.
    """
    crowded = len(configurations) > CROWD
    named = {one.key for one in fastest(configurations)}
    return {
        one.key: str(number) if crowded else one.label
        for number, one in enumerate(configurations, start=1)
        if one.key in named
    }


def fastest(configurations: Sequence[Configuration]) -> list[Configuration]:
    """At most `MOST` of them, in the order given: what a figure has room for."""
    quick = sorted(configurations, key=lambda one: one.speed or 0.0, reverse=True)[:MOST]
    named = {one.key for one in quick}
    return [one for one in configurations if one.key in named]


def completed(runs: Iterable[Row]) -> list[Row]:
    """The runs that count: complete, and still asked for."""
    return [row for row in runs if row["state"] == "completed" and not row["retired"]]


def configurations(runs: Iterable[Row]) -> list[Configuration]:
    """One for every grid point with a completed run, by series, then cores, then ranks."""
    grouped: dict[str, list[Row]] = {}
    for row in completed(runs):
        grouped.setdefault(row["config"], []).append(row)
    varying = _varying([rows[0] for rows in grouped.values()])
    found = [_configuration(key, rows, varying) for key, rows in grouped.items()]
    return sorted(found, key=lambda one: (one.series, one.cores, one.ranks, one.label))


def _varying(rows: Sequence[Row]) -> list[str]:
    """The named settings that tell these rows apart."""
    return [name for name in NAMED if len({repr(row.get(name)) for row in rows}) > 1]


def _configuration(key: str, rows: Sequence[Row], varying: Sequence[str]) -> Configuration:
    first = rows[0]
    words = {name: _word(name, first.get(name)) for name in NAMED if _says(name, first, varying)}
    per_rank = first.get("batch_size_per_rank") is not None  # then the batch follows the ranks
    series = [word for name, word in words.items() if not (name == "batch" and per_rank)]
    figures = {name: spread(row.get(name) for row in rows) for name in FIGURES}
    return Configuration(
        key=key,
        shape=shape(first),
        series=" · ".join(series),
        label=" · ".join([shape(first), *_threads(first), *words.values()]),
        rows=rows,
        figures={name: value for name, value in figures.items() if value},
    )


def _says(name: str, row: Row, varying: Sequence[str]) -> bool:
    if row.get(name) is None or (name == "num_workers" and row.get("loader") == "vectorized"):
        return False
    always = name in {"loader", "command"} or (name == "num_workers" and row[name] > 0)
    return bool(always or name in varying)


def _word(name: str, value: Any) -> str:
    if name in BARE:
        return textwrap.shorten(str(value), LONGEST, placeholder="…")
    if name == "num_workers":
        return counted(value, "worker")
    shown = (
        "-".join(map(str, value))
        if isinstance(value, list | tuple)
        else (str(value) if isinstance(value, str) else f"{value:g}")
    )
    return f"{name.replace('_', ' ')} {shown}"


def shape(row: Row) -> str:
    """The resources in words: `2 cores`, `2 nodes × 4 ranks × 1 core`, `1 core + 1 GPU`."""
    if row["workload"] == "command":
        return counted(row["cores_allocated"], "core")
    words = [counted(row["cpus_per_task"], "core")]
    if row["world_size"] > 1:
        words.insert(0, counted(row["tasks_per_node"], "rank"))
    if row["nodes"] > 1:
        words.insert(0, counted(row["nodes"], "node"))
    gpus = [counted(row["gpus_per_node"], "GPU")] if row["gpus_per_node"] else []
    return " + ".join([" × ".join(words), *gpus])


def _threads(row: Row) -> list[str]:
    """Only where a rank's threads are not one for each of its cores."""
    threads = row.get("threads")
    return [] if threads in (None, row["cpus_per_task"]) else [counted(threads, "thread")]


def counted(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"
