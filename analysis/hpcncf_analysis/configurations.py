"""Group runs into configurations: labels, medians over repeats, speed-up."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import pandas as pd

from hpcncf.collect.resource_columns import METRIC, PARAMETER, is_number
from hpcncf.collect.training_columns import PHASES_TRAINED
from hpcncf.job.plan import SEED
from hpcncf_analysis.formatting import NONE

Row = Mapping[str, Any]

# Settings in the order in which a label names them; loader always, the others where they vary. Not
# `seed`: runs that differ in it are repeats.
LABEL_ORDER: Final = (
    "loader",
    "num_workers",
    "workers",
    "persistent_workers",
    "prefetch_factor",
    "collate",
    "pin_memory",
    "non_blocking",
    "prefetch_to_device",
    "engine",
    "sync",
    "sync_every",
    "parallel",
    "bucket_mb",
    "gradient_as_bucket_view",
    "static_graph",
    "interop_threads",
    "omp_wait_policy",
    "pin",
    "cudnn_benchmark",
    "compile",
    "cuda_graph",
    "precision",
    "tf32",
    "optimizer",
    "adam",
    "sparse",
    "weight_decay",
    "batch",
    "accumulate",
    "negatives",
    "lr",
    "lr_scale",
    "lr_base_batch",
    "epochs",
    "max_steps",
    "device",
    "backend",
    "launcher",
    "runs_per_node",
    "runs_per_gpu",
    "ranks_per_gpu",
    "mps",
    "evaluation",
    "checkpoint_every",
    "profile",
    "profile_ranks",
    "profile_steps",
    "profile_rate",
    "profile_native",
    "profile_subprocesses",
    "gmf_width",
    "mlp_width",
    "layers",
    "dropout",
    "init",
    "embedding_std",
    "data_title",
    "data_key",
    "command",
)
WORKER_SETTINGS: Final = {"workers", "persistent_workers", "prefetch_factor"}
MAX_LABEL_WORD: Final = 32
MAX_VARYING: Final = 5
"""Where more settings than this vary, a label names those of its own alone."""
INERT: Final = re.compile(r"training\.(\w+) has no effect\b")
VALUE_ONLY_SETTINGS: Final = {"loader", "engine", "data_title", "command"}


def command_name(row: Row) -> str:
    """What the user called the command, or all of it; only equal ones do the same work.

    A job's command is one and the same at each of its points: no name.
    """
    if not row["by_hand"]:
        return ""
    return str((row.get("varied") or {}).get("run.command") or row.get("command") or "")


def varying_settings(rows: Sequence[Row]) -> list[str]:
    """The named settings that differ between these rows; the data's key only if no title does."""
    names = [
        name
        for name in _ordered_settings(rows[0])
        if len({repr(row.get(name)) for row in rows}) > 1
    ]
    if len({(command_name(row), row.get("command")) for row in rows}) == len(
        {command_name(row) for row in rows}
    ):
        names = [name for name in names if name != "command"]
    return [name for name in names if name != "data_key" or "data_title" not in names]


def unsaid_values(rows: Sequence[Row], varying: Sequence[str]) -> dict[str, Any]:
    """Values that labels leave unsaid: the baseline's; without one, of many the commonest."""
    base = next((row for row in rows if row.get("baseline")), None)
    if base is None:
        return commonest_values(rows, varying)
    return {name: base.get(name) for name in varying}


def commonest_values(rows: Sequence[Row], varying: Sequence[str]) -> dict[str, Any]:
    """The commonest values of settings that differ between rows: labels leave them unsaid."""
    if len(varying) <= MAX_VARYING:
        return {}
    return {name: _commonest([row.get(name) for row in rows]) for name in varying}


def _commonest(values: Sequence[Any]) -> Any:
    return max(values, key=values.count)


def _ordered_settings(row: Row) -> list[str]:
    """The names in a label's order; a job's command has its parameters for one."""
    settings = [name for name in LABEL_ORDER if name != "command" or row["by_hand"]]
    return settings + sorted(
        name for name in row if name.startswith(PARAMETER) and name != PARAMETER + SEED
    )


def label_settings(
    row: Row, varying: Sequence[str], unsaid: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Setting -> words, of those distinguished by and those always named, in a label's order.

    `unsaid`: setting -> the value that goes without saying.
    """
    unsaid = unsaid or {}
    varying = [name for name in varying if name not in unsaid or row.get(name) != unsaid[name]]
    words = {
        name: _format_setting(name, row.get(name))
        for name in _ordered_settings(row)
        if _is_labelled(name, row, varying)
    }
    if "command" in words:
        words["command"] = _command_label(row, "command" in varying)
    words |= {name: f"{words[name]} (no effect)" for name in inert_settings(row) if name in words}
    return words


def inert_settings(row: Row) -> dict[str, str]:
    """Setting of `training` -> the record's warning that it had no effect in this run."""
    warnings = row.get("warnings") or ()
    return {found[1]: text for text in warnings if (found := INERT.match(text))}


def _command_label(row: Row, ambiguous: bool) -> str:
    """Its name; where commands of one name differ, what was run as well."""
    texts = [command_name(row), *([row["command"]] if ambiguous else [])]
    return " · ".join(_format_setting("command", text) for text in texts)


def _is_labelled(name: str, row: Row, varying: Sequence[str]) -> bool:
    if row.get(name) is None or _has_no_effect(name, row):
        return False
    always = name in {"loader", "command"} or (name == "num_workers" and row[name] > 0)
    return bool(always or name in varying)


def _has_no_effect(name: str, row: Row) -> bool:
    """What only another setting's value gives a meaning."""
    if name == "num_workers":
        return row.get("loader") in ("vectorized", "device")
    if name in WORKER_SETTINGS:
        return not row.get("num_workers")
    return name == "sync_every" and row.get("sync") != "local_sgd"


def _format_setting(name: str, value: Any) -> str:
    if name in VALUE_ONLY_SETTINGS:
        return textwrap.shorten(str(value), MAX_LABEL_WORD, placeholder="…")
    if name == "data_key":
        return f"data {value[:8]}"
    if name == "num_workers":
        return pluralize(value, "worker")
    if isinstance(value, bool | str):
        text = str(value).lower() if isinstance(value, bool) else value
        return textwrap.shorten(
            f"{format_column_name(name)} {text}", MAX_LABEL_WORD, placeholder="…"
        )
    if isinstance(value, int):
        return f"{format_column_name(name)} {value}"
    shown = "-".join(map(str, value)) if isinstance(value, list | tuple) else f"{value:g}"
    return f"{format_column_name(name)} {shown}"


def format_column_name(column: str) -> str:
    """A column's name as a label and a heading have it."""
    return column.removeprefix(PARAMETER).removeprefix(METRIC).replace("_", " ")


def format_shape(row: Row) -> str:
    """The resources in words: `2 cores`, `2 nodes × 4 ranks × 1 core`, `1 core + 1 GPU`."""
    if row["by_hand"]:
        return pluralize(row["cores_allocated"], "core")
    words = [pluralize(row["cpus_per_task"], "core")]
    if row["world_size"] > 1:
        words.insert(0, pluralize(row["tasks_per_node"], "rank"))
    if row["nodes"] > 1:
        words.insert(0, pluralize(row["nodes"], "node"))
    gpus = [pluralize(row["gpus_per_node"], "GPU")] if row["gpus_per_node"] else []
    return " + ".join([" × ".join(words), *gpus])


def format_threads(row: Row) -> list[str]:
    """Only where a rank's threads are not one for each of its cores."""
    threads = row.get("threads")
    return [] if threads in (None, row["cpus_per_task"]) else [pluralize(threads, "thread")]


def pluralize(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"


def with_scaling(configurations: pd.DataFrame) -> pd.DataFrame:
    """Add `speedup`, `parallel_efficiency` and `base`, the label of the series' smallest.

    That has the fewest `cores`, then the fewest `ranks`, of those of its `series` with a `speed`.
    The work is the same, so that the speed-up T(base) / T(this) is the ratio of speeds; parallel
    efficiency is the speed-up for each time that the cores were multiplied: 1.0 is ideal.
    """
    speed = configurations["speed"].astype(float)
    speed = speed.where(speed > 0)
    measured = configurations.assign(speed=speed).dropna(subset="speed")
    smallest = measured.sort_values(["cores", "ranks", "label"]).drop_duplicates("series")
    base = smallest.set_index("series").reindex(configurations["series"])
    base.index = configurations.index
    speedup = speed / base["speed"]
    return configurations.assign(
        speedup=speedup,
        parallel_efficiency=speedup / (configurations["cores"] / base["cores"]),
        base=base["label"],
    )


def karp_flatt(speedup: float, times_the_cores: float) -> float | None:
    """Serial share that a speed-up on so many times the cores shows, (1/S - 1/p) / (1 - 1/p).

    Karp, Flatt 1990. Where it grows with the cores, overhead does; where it stays, the serial part
    is what holds. Below 0: faster than ideal. None without more cores than the base's.
    """
    if times_the_cores <= 1 or speedup <= 0:
        return None
    return (1 / speedup - 1 / times_the_cores) / (1 - 1 / times_the_cores)


@dataclass(frozen=True)
class Table:
    """A heading for each column, then rows as wide; the first column is text.

    Headings `group: name` of neighbours belong together.
    """

    columns: list[str]
    rows: list[list[str]]
    texts: frozenset[str] = frozenset()
    """The other columns of text, not of figures."""
    keys: Sequence[Sequence[float | None]] = ()
    """[row][column] what a column of figures is sorted by, if its texts do not sort."""

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Each group's heading and how many columns it spans; a column of none is its own."""
        named = [(self._parts(name)[0], name) for name in self.columns]
        runs = groupby(named, key=lambda pair: pair[0] or pair[1])
        counted = [(group, [name for _, name in members]) for group, members in runs]
        return [(group if ": " in names[0] else "", len(names)) for group, names in counted]

    @property
    def names(self) -> list[str]:
        """The headings without their groups."""
        return [self._parts(name)[1] for name in self.columns]

    @property
    def wraps(self) -> bool:
        """Whether its last column is prose."""
        return self.columns[-1] in self.texts

    @property
    def without_empty_columns(self) -> Table:
        """The same without columns that say nothing of any row."""
        kept = [
            at
            for at in range(len(self.columns))
            if not at or any(row[at] not in ("", NONE) for row in self.rows)
        ]
        return replace(
            self,
            columns=[self.columns[at] for at in kept],
            rows=[[row[at] for at in kept] for row in self.rows],
            keys=[[row[at] for at in kept] for row in self.keys],
        )

    def key(self, row: int, column: int) -> float | None:
        return self.keys[row][column] if self.keys else None

    @staticmethod
    def _parts(column: str) -> tuple[str, str]:
        group, _, name = column.rpartition(": ")
        return group, name


Row_summary = Mapping[str, Any]

# With more configurations than this, figures name them by number: labels would cover each other.
MAX_LABELLED: Final = 8
MAX_DRAWN: Final = 24
FIGURES: Final = (
    "instances_per_s",
    "steps_per_s",
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
    "hr10_at_end",
    "baseline_hr10",
    "baseline_ndcg10",
    *(f"{phase}_share" for phase in PHASES_TRAINED),
    "sync_ms_per_step",
    "sync_bytes_per_step",
)


def summarize_repeats(runs: pd.DataFrame) -> pd.DataFrame:
    """Of each `config` over its repeats: every figure's median, and `<figure>_low` and `_high`.

    Empty where any repeat lacks the figure: the others' median would not stand for all. One repeat
    has no low and no high.
    """
    rows = [{str(name): value for name, value in row.items()} for _, row in runs.iterrows()]
    names = [*FIGURES, *numeric_metrics(rows)]
    figures = runs.reindex(columns=names).astype(float).groupby(runs["config"], sort=False)
    number = figures.count()
    whole = number.eq(figures.size(), axis=0)
    low, high = (ends.where(whole & (number > 1)) for ends in (figures.min(), figures.max()))
    medians = figures.median().where(whole)
    return pd.concat([medians, low.add_suffix("_low"), high.add_suffix("_high")], axis=1)


def numeric_metrics(rows: Iterable[Row_summary]) -> list[str]:
    """Columns of what commands reported that are numbers wherever they are known."""
    numbers: dict[str, bool] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(METRIC) and value is not None and value == value:  # no NaN
                numbers[name] = numbers.get(name, True) and is_number(value)
    return sorted(name for name, all_are in numbers.items() if all_are)


@dataclass(frozen=True)
class Configuration:
    """One grid point: its completed repeats, distinguished from the others by its label."""

    key: str
    shape: str
    """`1 core`, `2 ranks × 1 core`."""
    series: str
    """What is compared over cores: all that the label says but shape and threads."""
    label: str
    rows: Sequence[Row_summary]
    figures: Mapping[str, float]
    """Those known of `spread`'s columns, and of its scaling."""
    has_speed: bool = True
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
        return self.is_command and not self.has_speed

    @property
    def command(self) -> str:
        """Its name, or all of it: the label shortens it."""
        return command_name(self.rows[0])

    @property
    def speed(self) -> float | None:
        """Instances per second; for a command that reports none, runs per hour."""
        if not self.by_time:
            return self.median("instances_per_s")
        elapsed_s = self.median("elapsed_s")
        return 3600 / elapsed_s if elapsed_s else None


def figure_labels(configurations: Sequence[Configuration]) -> dict[str, str]:
    """Configuration key -> what a figure calls it: its label, or its number in the table.

    Of very many only the fastest are named.
    """
    crowded = len(configurations) > MAX_LABELLED
    named = {one.key for one in select_fastest(configurations)}
    return {
        one.key: str(number) if crowded else one.label
        for number, one in enumerate(configurations, start=1)
        if one.key in named
    }


def select_fastest(configurations: Sequence[Configuration]) -> list[Configuration]:
    """At most `MOST` of them, in the order given: what a figure has room for."""
    quick = sorted(configurations, key=lambda one: one.speed or 0.0, reverse=True)[:MAX_DRAWN]
    named = {one.key for one in quick}
    return [one for one in configurations if one.key in named]


def completed_runs(runs: Iterable[Row_summary]) -> list[Row_summary]:
    """The runs that count: complete, and still asked for."""
    return [row for row in runs if row["state"] == "completed" and not row["retired"]]


def group_configurations(runs: Iterable[Row_summary]) -> list[Configuration]:
    """One for every grid point with a completed run, by series, then cores, then ranks."""
    grouped: dict[str, list[Row_summary]] = {}
    for row in completed_runs(runs):
        grouped.setdefault(row["config"], []).append(row)
    if not grouped:
        return []
    firsts = [rows[0] for rows in grouped.values()]
    varying = varying_settings(firsts)
    unsaid = unsaid_values(firsts, varying)
    figures = _drop_empty(
        summarize_repeats(pd.DataFrame([row for rows in grouped.values() for row in rows]))
    )
    found = [
        _configuration(key, rows, label_settings(rows[0], varying, unsaid), known)
        for (key, rows), known in zip(grouped.items(), figures, strict=True)
    ]
    has_speed = all(row["instances_per_s"] for rows in grouped.values() for row in rows)
    found = [replace(one, has_speed=has_speed) for one in found]
    return _add_scaling(
        sorted(found, key=lambda one: (one.series, one.cores, one.ranks, one.label))
    )


def _drop_empty(table: pd.DataFrame) -> list[dict[str, float]]:
    """Each row's figures, without those that are empty."""
    return [
        {str(name): float(value) for name, value in row.dropna().items()}
        for _, row in table.iterrows()
    ]


def _add_scaling(found: Sequence[Configuration]) -> list[Configuration]:
    """The same, `speedup` and `parallel_efficiency` among their figures."""
    names = ("series", "label", "cores", "ranks", "speed")
    table = pd.DataFrame({name: [getattr(one, name) for one in found] for name in names})
    gains = _drop_empty(with_scaling(table)[["speedup", "parallel_efficiency"]])
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
    whole = {**words} | ({"command": command_name(first)} if "command" in words else {})
    series = [word for name, word in whole.items() if not (name == "batch" and per_rank)]
    return Configuration(
        key=key,
        shape=format_shape(first),
        series=" · ".join(series),
        label=" · ".join([format_shape(first), *format_threads(first), *words.values()]),
        rows=rows,
        figures=figures,
    )


def group_by_series(configurations: Iterable[Configuration]) -> dict[str, list[Configuration]]:
    """Those with a speed, in order of cores; the first of each series is its base."""
    grouped: dict[str, list[Configuration]] = {}
    for one in sorted(configurations, key=lambda one: (one.cores, one.ranks, one.label)):
        if one.speed:
            grouped.setdefault(one.series, []).append(one)
    return grouped
