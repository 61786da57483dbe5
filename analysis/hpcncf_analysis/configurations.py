"""Group runs into configurations: labels, medians over repeats, speed-up."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from hpcncf import removed
from hpcncf.collect.resource_columns import METRIC, PARAMETER, is_number
from hpcncf.job.identity import SEED
from hpcncf.job.spec import Model, Resources, Training
from hpcncf.text import pluralize

Row = Mapping[str, Any]

# Settings that no label names: the shape or the batch stands for them, they change no speed, or
# runs that differ in them are repeats.
UNLABELLED: Final = frozenset(
    {"nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb", "timeout_min"}
    | {"runs_per_task", "requeues", "threads", "global_batch_size", "batch_size_per_rank"}
    | {"checkpoint_every_min", "log_every", "seed"}
)
# Settings in the order in which a label names them; loader always, the others if they vary.
LABEL_ORDER: Final = tuple(
    name
    for name in dict.fromkeys(
        [
            *("loader", "num_workers", "persistent_workers", "prefetch_factor"),
            *("engine", "sync", "optimizer", "adam", "batch"),
            *Training.model_fields,
            *Resources.model_fields,
            *Model.model_fields,
            *(dotted.partition(".")[2] for dotted in removed.SETTINGS),
            *("remedies", "data_title", "data_key", "command"),
        ]
    )
    if name not in UNLABELLED
)
WORKER_SETTINGS: Final = {"workers", "persistent_workers", "prefetch_factor"}
VALUE_ONLY_SETTINGS: Final = {"loader", "engine", "remedies", "data_title", "command"}
MAX_LABEL_WORD: Final = 32
MAX_VARYING: Final = 5
"""If more settings than this vary, a label names those of its own alone."""
INERT: Final = re.compile(r"training\.(\w+) has no effect\b")
# With more configurations than this, a figure has no key: its numbers are the table's.
MAX_LABELLED: Final = 12
MAX_DRAWN: Final = 24

MAX_OTHERS_SHARE: Final = 0.1
"""Share of a run's cores that others may use before its speed is doubted."""


def command_name(row: Row) -> str:
    """Name that the user gave a typed command, or the whole command line; empty for a job.

    Only commands of equal name do the same work. A job's command is the same at all of its points,
    and has no name. This is where the analysis tells the two apart.
    """
    if not row["by_hand"]:
        return ""
    return str((row.get("varied") or {}).get("run.command") or row.get("command") or "")


def varying_settings(rows: Sequence[Row]) -> list[str]:
    """Names of settings that differ between the rows; `data_key` only if titles do not."""
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
    """Setting values that labels omit: the baseline's, or else the commonest of many."""
    base = next((row for row in rows if row.get("baseline")), None)
    if base is None:
        return commonest_values(rows, varying)
    return {name: base.get(name) for name in varying}


def commonest_values(rows: Sequence[Row], varying: Sequence[str]) -> dict[str, Any]:
    """Commonest value of each varying setting, which labels omit; empty for few settings."""
    if len(varying) <= MAX_VARYING:
        return {}
    values = {name: [row.get(name) for row in rows] for name in varying}
    return {name: max(each, key=each.count) for name, each in values.items()}


def _ordered_settings(row: Row) -> list[str]:
    """Names of a row's settings in the order of a label, a job's parameters last."""
    settings = [name for name in LABEL_ORDER if name != "command" or command_name(row)]
    return settings + sorted(
        name for name in row if name.startswith(PARAMETER) and name != PARAMETER + SEED
    )


def label_settings(
    row: Row, varying: Sequence[str], unsaid: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Setting -> words of a row's label, in the order of a label.

    Contains the settings in `varying`, and those that a label always names.

    `unsaid`: setting -> the value that goes without saying.
    """
    unsaid = unsaid or {}
    varying = [name for name in varying if name not in unsaid or row.get(name) != unsaid[name]]
    words = {
        name: _format_setting(name, row.get(name))
        for name in _ordered_settings(row)
        if _is_labelled(name, row, varying)
    }
    if "command" in words:  # its name; if commands of one name differ, what was run as well
        texts = [command_name(row), *([row["command"]] if "command" in varying else [])]
        words["command"] = " · ".join(_format_setting("command", text) for text in texts)
    words |= {name: f"{words[name]} (no effect)" for name in inert_settings(row) if name in words}
    return words


def inert_settings(row: Row) -> dict[str, str]:
    """Name of a `training` setting -> recorded warning that it had no effect in this run."""
    warnings = row.get("warnings") or ()
    return {found[1]: text for text in warnings if (found := INERT.match(text))}


def _is_labelled(name: str, row: Row, varying: Sequence[str]) -> bool:
    """Whether a label names this setting: it varies or is always named, and has an effect."""
    if row.get(name) is None:
        return False
    if name == "num_workers":
        has_workers = row.get("loader") not in ("vectorized", "device")
        return has_workers and bool(row[name] > 0 or name in varying)
    if name in WORKER_SETTINGS and not row.get("num_workers"):
        return False
    return name in {"loader", "command"} or name in varying


def _format_setting(name: str, value: Any) -> str:
    if name == "data_key":
        return f"data {value[:8]}"
    if name == "num_workers":
        return pluralize(value, "worker")
    if name == "remedies":  # as --with has them, and whole: others may begin alike
        return str(value)
    if isinstance(value, list | tuple):  # whole, too
        return f"{format_column_name(name)} {'-'.join(map(str, value))}"
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, float):
        value = f"{value:g}"
    words = f"{value}" if name in VALUE_ONLY_SETTINGS else f"{format_column_name(name)} {value}"
    return textwrap.shorten(words, MAX_LABEL_WORD, placeholder="…")


def format_column_name(column: str) -> str:
    """Format a column's name for labels and headings, without prefix and underscores."""
    return column.removeprefix(PARAMETER).removeprefix(METRIC).replace("_", " ")


def format_shape(row: Row) -> str:
    """Format a run's resources: `2 cores`, `2 nodes × 4 ranks × 1 core`, `1 core + 1 GPU`."""
    if command_name(row):
        return pluralize(row["cores_allocated"], "core")
    words = [pluralize(row["cpus_per_task"], "core")]
    if row["world_size"] > 1:
        words.insert(0, pluralize(row["tasks_per_node"], "rank"))
    if row["nodes"] > 1:
        words.insert(0, pluralize(row["nodes"], "node"))
    gpus = [pluralize(row["gpus_per_node"], "GPU")] if row["gpus_per_node"] else []
    return " + ".join([" × ".join(words), *gpus])


def format_threads(row: Row) -> list[str]:
    """Thread count of a rank in words; empty if unknown or equal to the rank's cores."""
    threads = row.get("threads")
    return [] if threads in (None, row["cpus_per_task"]) else [pluralize(threads, "thread")]


def others_share(row: Row) -> float | None:
    """Share of a run's allocated cores on which other processes were busy."""
    others, allocated = row["others_cores"], row["cores_allocated"]
    return others / allocated if others is not None and allocated else None


def is_disturbed(row: Row) -> bool:
    """Whether other processes used more than MAX_OTHERS_SHARE of the run's cores."""
    return (others_share(row) or 0.0) > MAX_OTHERS_SHARE


def karp_flatt(speedup: float, times_the_cores: float) -> float | None:
    """Serial share implied by a speed-up on p times the cores, (1/S - 1/p) / (1 - 1/p).

    Karp, Flatt 1990. If it grows with the cores, overhead does; if it stays, the serial part is
    what holds. Below 0: faster than ideal. None without more cores than the base's.
    """
    if times_the_cores <= 1 or speedup <= 0:
        return None
    return (1 / speedup - 1 / times_the_cores) / (1 - 1 / times_the_cores)


def summarize_repeats(rows: Sequence[Row]) -> dict[str, float]:
    """Median of each figure over the repeats, with `<figure>_low` and `_high` if several.

    Without those that a repeat lacks: the others' median would not stand for all.
    """
    figures: dict[str, float] = {}
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        numbers = [float(value) for value in values if is_number(value)]
        if len(numbers) == len(rows):
            figures[name] = median(numbers)
            if len(rows) > 1:
                figures |= {f"{name}_low": min(numbers), f"{name}_high": max(numbers)}
    return figures


def numeric_metrics(rows: Iterable[Row]) -> list[str]:
    """Sorted names of metrics reported by commands whose known values are all numbers."""
    numbers: dict[str, bool] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(METRIC) and value is not None:
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
    rows: Sequence[Row]
    figures: Mapping[str, float]
    """`summarize_repeats`, and its scaling."""
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
    def by_time(self) -> bool:
        """Whether speed is in runs per hour, as for a command that counts no instances."""
        return self.is_command and not self.has_speed

    @property
    def command(self) -> str:
        """Name or command line of a typed command, which the label shortens; empty for a job."""
        return command_name(self.rows[0])

    @property
    def speed(self) -> float | None:
        """Median speed in instances/s; for a command that reports none, in runs per hour."""
        if not self.by_time:
            return self.median("instances_per_s")
        elapsed_s = self.median("elapsed_s")
        return 3600 / elapsed_s if elapsed_s else None

    @property
    def speeds(self) -> list[float]:
        """Speed of each repeat that has one, in the unit of `speed`."""
        if self.by_time:
            return [3600 / row["elapsed_s"] for row in self.rows if row.get("elapsed_s")]
        return [row["instances_per_s"] for row in self.rows if row.get("instances_per_s")]


def number_rows(configurations: Sequence[Configuration]) -> dict[str, int]:
    """Configuration key -> number of its row in the tables; of very many only of the fastest."""
    named = {one.key for one in select_fastest(configurations)}
    numbers = enumerate(configurations, start=1)
    return {one.key: number for number, one in numbers if one.key in named}


def figure_key(configurations: Sequence[Configuration]) -> dict[int, str]:
    """Number -> label, for a figure's key; empty if there are many: then tables have numbers."""
    if len(configurations) > MAX_LABELLED:
        return {}
    return {number: one.label for number, one in enumerate(configurations, start=1)}


def select_fastest(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Select the `MAX_DRAWN` fastest configurations, kept in the order given."""
    quick = sorted(configurations, key=lambda one: one.speed or 0.0, reverse=True)[:MAX_DRAWN]
    named = {one.key for one in quick}
    return [one for one in configurations if one.key in named]


def completed_runs(runs: Iterable[Row]) -> list[Row]:
    """Select the runs that are complete and that the job file still contains."""
    return [row for row in runs if row["state"] == "completed" and not row["retired"]]


def group_configurations(runs: Iterable[Row]) -> list[Configuration]:
    """Group completed runs into configurations, sorted by series, cores and ranks."""
    grouped: dict[str, list[Row]] = {}
    for row in completed_runs(runs):
        grouped.setdefault(row["config"], []).append(row)
    if not grouped:
        return []
    firsts = [rows[0] for rows in grouped.values()]
    varying = varying_settings(firsts)
    unsaid = unsaid_values(firsts, varying)
    has_speed = all(row["instances_per_s"] for rows in grouped.values() for row in rows)
    found = []
    for key, rows in grouped.items():
        first, words = rows[0], label_settings(rows[0], varying, unsaid)
        series = dict(words)
        if first.get("batch_size_per_rank") is not None:  # the batch follows the ranks
            series.pop("batch", None)
        if "command" in words:  # a label shortens it, and others may begin alike
            series["command"] = command_name(first)
        one = Configuration(
            key=key,
            shape=format_shape(first),
            series=" · ".join(series.values()),
            label=" · ".join([format_shape(first), *format_threads(first), *words.values()]),
            rows=rows,
            figures=summarize_repeats(rows),
            has_speed=has_speed,
        )
        found.append(one)
    found.sort(key=lambda one: (one.series, one.cores, one.ranks, one.label))
    bases = {series: members[0] for series, members in group_by_series(found).items()}
    return [_with_scaling(one, bases.get(one.series)) for one in found]


def _with_scaling(one: Configuration, base: Configuration | None) -> Configuration:
    """Add `speedup` and `parallel_efficiency` against the base to a configuration.

    The configuration is returned unchanged if one of the two has no speed.

    The work is the same, so that the speed-up T(base) / T(this) is the ratio of speeds; parallel
    efficiency is the speed-up for each time that the cores were multiplied: 1.0 is ideal.
    """
    if base is None or not base.speed or not one.speed:
        return one
    speedup = one.speed / base.speed
    gains = {"speedup": speedup, "parallel_efficiency": speedup / (one.cores / base.cores)}
    return replace(one, figures={**one.figures, **gains})


def group_by_series(configurations: Iterable[Configuration]) -> dict[str, list[Configuration]]:
    """Series -> its configurations with a speed, by ascending cores; the first is the base."""
    grouped: dict[str, list[Configuration]] = {}
    for one in sorted(configurations, key=lambda one: (one.cores, one.ranks, one.label)):
        if one.speed:
            grouped.setdefault(one.series, []).append(one)
    return grouped


def settings_without_effect(one: Configuration) -> dict[str, str]:
    """Dotted setting -> recorded warning that it has no effect in this configuration."""
    return {
        f"training.{name}": text for row in one.rows for name, text in inert_settings(row).items()
    }
