"""Cores, memory and time limit for a configuration, from its measured runs.

Runs that shared a node are requested one by one, because each had cores of its own. Runs that
shared a GPU stay together: the price of one is its share of that GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from hpcncf.collect.resource_columns import PARAMETER
from hpcncf.job.spec import Resources
from hpcncf_analysis.configurations import (
    Configuration,
    commonest_values,
    pluralize,
    varying_settings,
)
from hpcncf_analysis.formatting import format_duration, format_mebibytes, format_percent

Row = Mapping[str, Any]

# Columns that are no keys of a job file, or keys of another name.
NOT_KEYS: Final = {"batch", "data_title", "data_key", "command", "epochs"}
# A later run may need a little more than the highest peak of the repeats.
MEMORY_MARGIN: Final = 0.25
# hpcncf itself, beside each rank of a command; a command's record does not count it.
HPCNCF_MIB: Final = 64.0
# A run that its time limit ends is lost work; a limit that is too long waits in the queue.
TIME_MARGIN: Final = 0.5
LEAST_MARGIN_S: Final = 120.0


@dataclass(frozen=True)
class Request:
    """What one run asks of Slurm, or several that share a GPU, and where its figures come from."""

    resources: Resources
    expected_s: float | None
    """Seconds that the run should take; None if no measurement shows it."""
    memory: str
    """The source of `mem_gb`, a sentence."""
    time: str
    """The source of `timeout_min`, a sentence."""
    sharing: str = ""
    """What becomes of the runs that were beside it, a sentence; empty if there were none."""

    @property
    def core_hours(self) -> float | None:
        """Of a whole run, evaluation and start-up included."""
        return None if self.expected_s is None else self.resources.cores * self.expected_s / 3600


def build_request(one: Configuration, planned: Resources, epochs: int | None = None) -> Request:
    """Its own nodes, tasks and cores; memory and time as measured, or else as `planned`. The time
    is for so many epochs (default: its own)."""
    mem_gb, expected_s = memory_to_request_gb(one.rows), expected_seconds(one, epochs)
    sized = {
        "mem_gb": mem_gb or planned.mem_gb,
        "timeout_min": planned.timeout_min if expected_s is None else time_limit_min(expected_s),
        "runs_per_task": 1,
        # No more runs than share its GPU, and MPS only if processes share one.
        "runs_per_node": 1,
        "mps": planned.mps and max(planned.runs_per_gpu, planned.ranks_per_gpu) > 1,
    }
    peak = _describe_peak(one.rows)
    return Request(
        resources=planned.model_copy(update=sized),
        expected_s=expected_s,
        memory=f"Memory: {peak}." if peak else "Memory: as before, because none was measured.",
        time=_describe_time(one, expected_s, epochs),
        sharing=_describe_sharing(planned),
    )


def _describe_sharing(planned: Resources) -> str:
    if planned.side_by_side == 1:
        return ""
    if planned.runs_per_gpu == 1:
        return (
            f"Measured with {planned.side_by_side} runs side by side. This requests one, on as "
            "many cores as it had."
        )
    alone = "-s repeats=1 -s resources.runs_per_gpu=1" + " -s resources.mps=false" * planned.mps
    return (
        f"Measured with {planned.runs_per_gpu} runs on a GPU, and requested with as many repeats; "
        f"they may be other runs as well. A single run ({alone}) pays for the whole GPU."
    )


def _describe_peak(rows: Sequence[Row]) -> str:
    """`the highest peak of a node, 400 MiB, and 25 % more`; empty if none was measured."""
    peak_mib, beside_mib = largest_memory_peak_mib(rows), _hpcncf_memory_mib(rows)
    if peak_mib is None:
        return ""
    beside = f", {format_mebibytes(beside_mib)} for hpcncf beside it" if beside_mib else ""
    more = format_percent(MEMORY_MARGIN)
    return f"the highest peak of a node, {format_mebibytes(peak_mib)}{beside}, and {more} more"


def _describe_time(one: Configuration, expected_s: float | None, epochs: int | None) -> str:
    if expected_s is None:
        return "Time limit: as before, because no epoch's time is known."
    row = one.rows[0]
    source = "the longest run took"
    if row["workload"] != "command":
        source = f"{pluralize(epochs or row['epochs'], 'epoch')} with evaluation and start-up take"
    margin = f"{format_percent(TIME_MARGIN)} more, at least {format_duration(LEAST_MARGIN_S)}"
    return f"Time limit: {source} {format_duration(expected_s)}, and {margin}."


def time_limit_min(expected_s: float) -> int:
    """The time with its margin, in whole minutes."""
    return ceil(max(expected_s * (1 + TIME_MARGIN), expected_s + LEAST_MARGIN_S) / 60)


def expected_seconds(one: Configuration, epochs: int | None = None) -> float | None:
    """Seconds of a whole run by the slowest repeat's figures; None unless all repeats have them."""
    times = [seconds_of_whole_run(row, epochs) for row in one.rows]
    known = [seconds for seconds in times if seconds is not None]
    return max(known) if len(known) == len(times) else None


def seconds_of_whole_run(row: Row, epochs: int | None = None) -> float | None:
    """Seconds of a run of so many epochs (default: its own), start-up and evaluation included.

    The run's own elapsed time, with epochs added or removed; if `max_steps` cut the epochs short,
    or an earlier attempt computed some of them, start-up and whole epochs added up.
    """
    if row["workload"] == "command":
        return float(row["elapsed_s"]) if row["elapsed_s"] else None
    epoch_s, own, elapsed_s = row["seconds_per_epoch"], row.get("epochs"), row["elapsed_s"]
    if epoch_s is None or not own:
        return None
    epoch_s += row.get("seconds_per_evaluation") or 0.0
    overhead_s = elapsed_s - row["training_s"] - row["evaluation_s"]
    if not row["max_steps"]:
        overhead_s = max(overhead_s, elapsed_s - own * epoch_s)
    return float(overhead_s + (epochs or own) * epoch_s)


def describe_settings(one: Configuration, among: Sequence[Configuration]) -> str:
    """The settings of a job file that make this configuration: its ranks and cores, and the others
    that vary among `among`; of more than five, those that differ from most configurations."""
    if one.by_hand:
        return pluralize(one.cores, "core")
    row, firsts = one.rows[0], [other.rows[0] for other in among]
    varying = varying_settings(firsts)
    usual = commonest_values(firsts, varying)
    varying = [name for name in varying if name not in usual or row.get(name) != usual[name]]
    names = ["nodes"] if row["nodes"] > 1 else []
    names += ["tasks_per_node", "cpus_per_task"]
    names += ["gpus_per_node"] if row["gpus_per_node"] else []
    names += [name for name in ("loader", "num_workers") if row.get(name) and not usual]
    names += [name for name in varying if name in row and not name.startswith(PARAMETER)]
    values = {name: row[name] for name in names if name not in NOT_KEYS}
    if "batch" in names:
        per_rank = row.get("batch_size_per_rank") is not None
        key = "batch_size_per_rank" if per_rank else "global_batch_size"
        values[key] = row["batch_size_per_rank" if per_rank else "batch"]
    planned = {
        key: value for key, value in (row.get("varied") or {}).items() if key not in NOT_ASKED
    }
    commonest = commonest_values([first.get("varied") or {} for first in firsts], list(planned))
    for key, value in planned.items():
        if key not in commonest or value != commonest[key]:
            values[key.split(".")[-1]] = value
    return ", ".join(f"{key}: {format_yaml_value(value)}" for key, value in values.items())


# Seeds are repeats, and how long to train is the user's choice: the advice converts to it.
NOT_ASKED: Final = {"training.seed", "training.epochs"}


def format_yaml_value(value: Any) -> str:
    """The value as a job file has it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def memory_to_request_gb(rows: Sequence[Row]) -> float | None:
    """GB of a node for a run like these: the largest peak, hpcncf beside a command, and the margin,
    rounded up to a tenth; Slurm's GB has 1024 MiB. None if no peak was measured."""
    peak_mib = largest_memory_peak_mib(rows)
    if peak_mib is None:
        return None
    return ceil((peak_mib + _hpcncf_memory_mib(rows)) * (1 + MEMORY_MARGIN) / 1024 * 10) / 10


def largest_memory_peak_mib(rows: Sequence[Row]) -> float | None:
    """MiB on the node with the most, the largest of the repeats."""
    return max((row["memory_peak_mib"] for row in rows if row["memory_peak_mib"]), default=None)


def _hpcncf_memory_mib(rows: Sequence[Row]) -> float:
    row = rows[0]
    return HPCNCF_MIB * row["tasks_per_node"] if row["workload"] == "command" else 0.0
