"""What to write into a job file to get a configuration again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from hpcncf.tables.told import PARAMETER
from hpcncf_analysis import words
from hpcncf_analysis.labels import counted, varying
from hpcncf_analysis.summary import Configuration

# Columns that stand for no key of a job file, or for one of another name.
NO_KEYS: Final = {"batch", "data_title", "data_key", "command"}
# A later run may need a little more than the most that any repeat did.
MEMORY_MARGIN: Final = 0.25
# A run that its time limit ends is lost work; a limit that is too long waits in the queue.
TIME_MARGIN: Final = 0.5
LEAST_MARGIN_S: Final = 120.0


@dataclass(frozen=True)
class Request:
    """What one run asks of Slurm, in a job file's words, and where two of its figures are from."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int
    mem_gb: float
    timeout_min: int
    expected_s: float | None
    """How long the run should take; None where nothing measured tells."""
    reasons: tuple[str, ...]
    """Where memory and time are from, a sentence each."""


def asked(one: Configuration, among: Sequence[Configuration]) -> str:
    """The settings of a job file that make this configuration: every one that varies among them."""
    if one.by_hand:
        return counted(one.cores, "core")
    return ", ".join(f"{key}: {_yaml(value)}" for key, value in _keys(one, among).items())


def _keys(one: Configuration, among: Sequence[Configuration]) -> dict[str, Any]:
    row = one.rows[0]
    names = ["nodes"] if row["nodes"] > 1 else []
    names += ["tasks_per_node", "cpus_per_task"]
    names += ["gpus_per_node"] if row["gpus_per_node"] else []
    names += [name for name in ("loader", "num_workers") if row.get(name)]
    told = [name for name in varying([other.rows[0] for other in among]) if name in row]
    per_rank = row.get("batch_size_per_rank") is not None
    batch = "batch_size_per_rank" if per_rank else "global_batch_size"
    told = [name for name in told if not name.startswith(PARAMETER)]
    values = {name: row[name] for name in [*names, *told] if name not in NO_KEYS}
    values |= {batch: row[batch if per_rank else "batch"]} if "batch" in told else {}
    planned = row.get("varied") or {}
    return values | {key.split(".")[-1]: value for key, value in planned.items()}


def _yaml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def memory(one: Configuration) -> list[str]:
    """The memory to ask for; nothing where none was measured."""
    peaks = [row["memory_peak_mib"] for row in one.rows if row["memory_peak_mib"]]
    if not peaks:
        return []
    return [
        f"Memory: mem_gb: {memory_gb(max(peaks)):g} is enough (a node's peak, "
        f"{words.mebibytes(max(peaks))}, and {words.percent(MEMORY_MARGIN)} more)."
    ]


def memory_gb(peak_mib: float) -> float:
    """The peak with its margin, rounded up to a tenth; Slurm's GB has 1024 MiB."""
    return ceil(peak_mib * (1 + MEMORY_MARGIN) / 1024 * 10) / 10
