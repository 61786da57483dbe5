"""Runs become configurations: repeats of one setting together, with their medians. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd

from hpcncf.tables.told import METRIC, is_number
from hpcncf.tables.trained import PHASES_TRAINED
from hpcncf_analysis import labels
from hpcncf_analysis.scaling import with_scaling

Row_summary = Mapping[str, Any]

# With more configurations than this, figures name them by number: labels would cover each other.
CROWD: Final = 8
MOST: Final = 24
FIGURES: Final = (
    "instances_per_s",
    "seconds_per_epoch",
    "core_s_per_epoch",
    "core_h_per_epoch",
    "gpu_h_per_epoch",
    "instances_per_epoch",
    "elapsed_s",
    "startup_s",
    "training_s",
    "evaluation_s",
    "checkpoint_s",
    "seconds_per_evaluation",
    "evaluation_pairs_per_s",
    "cores_allocated",
    "cores_usable",
    "cores_used",
    "cpu_efficiency",
    "cpu_efficiency_peak",
    "cpu_efficiency_training",
    "core_hours",
    "gpu_hours",
    "gpu_busy",
    "gpu_ours",
    "gpu_memory_peak_mib",
    "gpu_sm_mhz",
    "gpu_power_w",
    "gpu_j_per_epoch",
    "gpu_throttled",
    "pause_share",
    "step_drift",
    "memory_peak_mib",
    "loss",
    "hr10",
    "ndcg10",
    "hr10_unseen",
    "baseline_hr10",
    "baseline_ndcg10",
    *(f"{phase}_share" for phase in PHASES_TRAINED),
    "sync_ms_per_step",
    "sync_bytes_per_step",
)


def spread(runs: pd.DataFrame) -> pd.DataFrame:
    """Of each `config` over its repeats: every figure's median, and `<figure>_low` and `_high`.

    Empty where any repeat lacks the figure: the others' median would not stand for all. One repeat
    has no low and no high.
    """
    rows = [{str(name): value for name, value in row.items()} for _, row in runs.iterrows()]
    names = [*FIGURES, *metrics(rows)]
    figures = runs.reindex(columns=names).astype(float).groupby(runs["config"], sort=False)
    told = figures.count()
    whole = told.eq(figures.size(), axis=0)
    low, high = (ends.where(whole & (told > 1)) for ends in (figures.min(), figures.max()))
    medians = figures.median().where(whole)
    return pd.concat([medians, low.add_suffix("_low"), high.add_suffix("_high")], axis=1)


def metrics(rows: Iterable[Row_summary]) -> list[str]:
    """Columns of what commands reported that are numbers wherever they are known."""
    numbers: dict[str, bool] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(METRIC) and value is not None and value == value:  # no NaN
                numbers[name] = numbers.get(name, True) and is_number(value)
    return sorted(name for name, all_are in numbers.items() if all_are)


@dataclass(frozen=True)
class Configuration:
    """One grid point: its completed repeats, told apart from the others by its label."""

    key: str
    shape: str
    """`1 core`, `2 ranks × 1 core`."""
    series: str
    """What is compared over cores: all that the label says but shape and threads."""
    label: str
    rows: Sequence[Row_summary]
    figures: Mapping[str, float]
    """Those known of `spread`'s columns, and of its scaling."""
    tells_speed: bool = True
    """Whether instances per second are known, of all that it is compared with, too."""

    def median(self, name: str) -> float | None:
        return self.figures.get(name)

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
    def by_hand(self) -> bool:
        """A command that `hpcncf run` started."""
        return bool(self.rows[0]["by_hand"])

    @property
    def by_time(self) -> bool:
        """Its speed is in runs per hour: nobody counted instances."""
        return self.is_command and not self.tells_speed

    @property
    def command(self) -> str:
        """Its name, or all of it: the label shortens it."""
        return labels.command_name(self.rows[0])

    @property
    def speed(self) -> float | None:
        """Instances per second; for a command that reports none, runs per hour."""
        if not self.by_time:
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


def completed(runs: Iterable[Row_summary]) -> list[Row_summary]:
    """The runs that count: complete, and still asked for."""
    return [row for row in runs if row["state"] == "completed" and not row["retired"]]


def configurations(runs: Iterable[Row_summary]) -> list[Configuration]:
    """One for every grid point with a completed run, by series, then cores, then ranks."""
    grouped: dict[str, list[Row_summary]] = {}
    for row in completed(runs):
        grouped.setdefault(row["config"], []).append(row)
    if not grouped:
        return []
    firsts = [rows[0] for rows in grouped.values()]
    told = labels.varying(firsts)
    unsaid = labels.usual(firsts, told)
    figures = _known(spread(pd.DataFrame([row for rows in grouped.values() for row in rows])))
    found = [
        _configuration(key, rows, labels.settings(rows[0], told, unsaid), known)
        for (key, rows), known in zip(grouped.items(), figures, strict=True)
    ]
    tells_speed = all(row["instances_per_s"] for rows in grouped.values() for row in rows)
    found = [replace(one, tells_speed=tells_speed) for one in found]
    return _scaled(sorted(found, key=lambda one: (one.series, one.cores, one.ranks, one.label)))


def _known(table: pd.DataFrame) -> list[dict[str, float]]:
    """Each row's figures, without those that are empty."""
    return [
        {str(name): float(value) for name, value in row.dropna().items()}
        for _, row in table.iterrows()
    ]


def _scaled(found: Sequence[Configuration]) -> list[Configuration]:
    """The same, `speedup` and `parallel_efficiency` among their figures."""
    names = ("series", "label", "cores", "ranks", "speed")
    table = pd.DataFrame({name: [getattr(one, name) for one in found] for name in names})
    gains = _known(with_scaling(table)[["speedup", "parallel_efficiency"]])
    return [
        replace(one, figures={**one.figures, **gained})
        for one, gained in zip(found, gains, strict=True)
    ]


def _configuration(
    key: str, rows: Sequence[Row_summary], words: Mapping[str, str], figures: Mapping[str, float]
) -> Configuration:
    first = rows[0]
    per_rank = first.get("batch_size_per_rank") is not None  # then the batch follows the ranks
    # Of a command the whole: a label shortens it, and others may begin alike.
    whole = {**words} | ({"command": labels.command_name(first)} if "command" in words else {})
    series = [word for name, word in whole.items() if not (name == "batch" and per_rank)]
    return Configuration(
        key=key,
        shape=labels.shape(first),
        series=" · ".join(series),
        label=" · ".join([labels.shape(first), *labels.threads(first), *words.values()]),
        rows=rows,
        figures=figures,
    )


def by_series(configurations: Iterable[Configuration]) -> dict[str, list[Configuration]]:
    """Those with a speed, in order of cores; the first of each series is its base."""
    grouped: dict[str, list[Configuration]] = {}
    for one in sorted(configurations, key=lambda one: (one.cores, one.ranks, one.label)):
        if one.speed:
            grouped.setdefault(one.series, []).append(one)
    return grouped
