"""Cores, memory and time limit for a configuration, from its measured runs.

Runs that shared a node alone are asked for one by one, for each had cores of its own. Those that
shared a GPU stay together: what one costs is its part of that GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from hpcncf.collect.resource_columns import PARAMETER
from hpcncf.job.spec import Resources
from hpcncf_analysis.configurations import Configuration, pluralize, varying_settings
from hpcncf_analysis.formatting import format_duration, format_mebibytes, format_percent

Row = Mapping[str, Any]

# Columns that stand for no key of a job file, or for one of another name.
NO_KEYS: Final = {"batch", "data_title", "data_key", "command"}
# A later run may need a little more than the most that any repeat did.
MEMORY_MARGIN: Final = 0.25
# What hpcncf itself takes beside each rank of a command; no record of the command counts it.
BESIDE_MIB: Final = 64.0
# A run that its time limit ends is lost work; a limit that is too long waits in the queue.
TIME_MARGIN: Final = 0.5
LEAST_MARGIN_S: Final = 120.0


@dataclass(frozen=True)
class Request:
    """What one run asks of Slurm, or as many as share its GPU, and where the figures are from."""

    resources: Resources
    expected_s: float | None
    """How long the run should take; None where nothing measured tells."""
    memory: str
    """Where `mem_gb` is from, in a sentence."""
    time: str
    """Where `timeout_min` is from, in a sentence."""
    sharing: str = ""
    """What becomes of the runs that were beside it, in a sentence; empty where none were."""

    @property
    def core_hours(self) -> float | None:
        """What a whole run should cost, evaluation and start-up included."""
        return None if self.expected_s is None else self.resources.cores * self.expected_s / 3600


def build_request(one: Configuration, asked: Resources) -> Request:
    """Its own nodes, tasks and cores; memory and time as measured, or else as `asked`."""
    mem_gb, expected_s = memory_to_request_gb(one.rows), expected_seconds(one)
    timeout = asked.timeout_min if expected_s is None else time_limit_min(expected_s)
    sized = {"mem_gb": mem_gb or asked.mem_gb, "timeout_min": timeout, "runs_per_task": 1}
    return Request(
        resources=asked.model_copy(update=sized | _sharing_resources(asked)),
        expected_s=expected_s,
        memory=_memory(one.rows),
        time=_time(one, expected_s),
        sharing=_sharing(asked),
    )


def _sharing_resources(asked: Resources) -> dict[str, Any]:
    """No more runs than share its GPU, and MPS where processes do."""
    shared = max(asked.runs_per_gpu, asked.ranks_per_gpu) > 1
    return {"runs_per_node": 1, "mps": asked.mps and shared}


def _sharing(asked: Resources) -> str:
    if asked.side_by_side == 1:
        return ""
    if asked.runs_per_gpu == 1:
        return (
            f"Measured with {asked.side_by_side} runs side by side; one alone is asked for, on "
            "as many cores as it had."
        )
    alone = "-s repeats=1 -s resources.runs_per_gpu=1" + " -s resources.mps=false" * asked.mps
    return (
        f"Measured with {asked.runs_per_gpu} runs on a GPU, and asked for with as many repeats, "
        f"which may be other runs as well; one alone ({alone}) pays for all of the GPU."
    )


def _memory(rows: Sequence[Row]) -> str:
    told = _describe_peak(rows)
    return f"A{told}." if told else "No run's memory was measured: it stays as it was."


def _describe_peak(rows: Sequence[Row]) -> str:
    """` node's peak, 400 MiB, and 25 % more`; empty where none was measured."""
    peak_mib, beside_mib = largest_memory_peak_mib(rows), _hpcncf_memory_mib(rows)
    if peak_mib is None:
        return ""
    beside = f", {format_mebibytes(beside_mib)} for hpcncf beside it" if beside_mib else ""
    more = format_percent(MEMORY_MARGIN)
    return f" node's peak, {format_mebibytes(peak_mib)}{beside}, and {more} more"


def _time(one: Configuration, expected_s: float | None) -> str:
    if expected_s is None:
        return "No time of an epoch is known: the limit stays as it was."
    row = one.rows[0]
    what = "The longest run"
    if row["workload"] != "command":
        what = f"{pluralize(row['epochs'], 'epoch')}, with evaluation and start-up"
    margin = f"{format_percent(TIME_MARGIN)} more, at least {format_duration(LEAST_MARGIN_S)}"
    return f"{what}, take {format_duration(expected_s)}; {margin}.".replace("run, take", "run took")


def time_limit_min(expected_s: float) -> int:
    """The time with its margin, in whole minutes."""
    return ceil(max(expected_s * (1 + TIME_MARGIN), expected_s + LEAST_MARGIN_S) / 60)


def expected_seconds(one: Configuration) -> float | None:
    """Seconds that the slowest repeat's figures give for a whole run, start-up included."""
    times = [_seconds_of_whole_run(row) for row in one.rows]
    known = [seconds for seconds in times if seconds is not None]
    return max(known) if len(known) == len(times) else None


def _seconds_of_whole_run(row: Row) -> float | None:
    """All its epochs, evaluated, also where `max_steps` cut the measured ones short; and what was
    neither training nor evaluation: start-up, checkpoints, the end."""
    elapsed_s, epoch_s = row["elapsed_s"], row["seconds_per_epoch"]
    if row["workload"] == "command":
        return float(elapsed_s) if elapsed_s else None
    if epoch_s is None:
        return None
    rest_s = elapsed_s - row["training_s"] - row["evaluation_s"]
    whole_s = rest_s + row["epochs"] * (epoch_s + (row["seconds_per_evaluation"] or 0.0))
    return float(whole_s if row["max_steps"] else max(whole_s, elapsed_s))


def describe_settings(one: Configuration, among: Sequence[Configuration]) -> str:
    """The settings of a job file that make this configuration: every one that varies among them."""
    if one.by_hand:
        return pluralize(one.cores, "core")
    return ", ".join(
        f"{key}: {format_yaml_value(value)}" for key, value in _keys(one, among).items()
    )


def _keys(one: Configuration, among: Sequence[Configuration]) -> dict[str, Any]:
    row = one.rows[0]
    names = ["nodes"] if row["nodes"] > 1 else []
    names += ["tasks_per_node", "cpus_per_task"]
    names += ["gpus_per_node"] if row["gpus_per_node"] else []
    names += [name for name in ("loader", "num_workers") if row.get(name)]
    told = [name for name in varying_settings([other.rows[0] for other in among]) if name in row]
    per_rank = row.get("batch_size_per_rank") is not None
    batch = "batch_size_per_rank" if per_rank else "global_batch_size"
    told = [name for name in told if not name.startswith(PARAMETER)]
    values = {name: row[name] for name in [*names, *told] if name not in NO_KEYS}
    values |= {batch: row[batch if per_rank else "batch"]} if "batch" in told else {}
    planned = row.get("varied") or {}
    return values | {key.split(".")[-1]: value for key, value in planned.items()}


def format_yaml_value(value: Any) -> str:
    """As a job file has it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe_memory(one: Configuration) -> list[str]:
    """The memory to ask for; nothing where none was measured."""
    enough = memory_to_request_gb(one.rows)
    if enough is None:
        return []
    return [f"Memory: mem_gb: {enough:g} is enough (a{_describe_peak(one.rows)})."]


def memory_to_request_gb(rows: Sequence[Row]) -> float | None:
    """What a node needs for a run like these: the largest peak, hpcncf's own beside a command, and
    the margin, rounded up to a tenth; Slurm's GB has 1024 MiB. None where none was measured."""
    peak_mib = largest_memory_peak_mib(rows)
    if peak_mib is None:
        return None
    return ceil((peak_mib + _hpcncf_memory_mib(rows)) * (1 + MEMORY_MARGIN) / 1024 * 10) / 10


def largest_memory_peak_mib(rows: Sequence[Row]) -> float | None:
    """MiB on the node with the most, the largest of the repeats."""
    return max((row["memory_peak_mib"] for row in rows if row["memory_peak_mib"]), default=None)


def _hpcncf_memory_mib(rows: Sequence[Row]) -> float:
    """On a node."""
    row = rows[0]
    return BESIDE_MIB * row["tasks_per_node"] if row["workload"] == "command" else 0.0
