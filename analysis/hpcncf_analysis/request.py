"""What to write into a job file to get a configuration again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hpcncf_analysis.labels import counted, varying
from hpcncf_analysis.summary import Configuration

# Columns that stand for no key of a job file, or for one of another name.
NO_KEYS: Final = {"batch", "data_title", "data_key", "command"}


def asked(one: Configuration, among: Sequence[Configuration]) -> str:
    """The settings of a job file that make this configuration: every one that varies among them."""
    if one.is_command:
        return counted(one.cores, "core")
    return ", ".join(f"{key}: {_yaml(value)}" for key, value in _keys(one, among).items())


def _keys(one: Configuration, among: Sequence[Configuration]) -> dict[str, Any]:
    row = one.rows[0]
    names = ["nodes"] if row["nodes"] > 1 else []
    names += ["tasks_per_node", "cpus_per_task"]
    names += ["gpus_per_node"] if row["gpus_per_node"] else []
    names += ["loader", *(["num_workers"] if row.get("num_workers") else [])]
    told = [name for name in varying([other.rows[0] for other in among]) if name in row]
    per_rank = row.get("batch_size_per_rank") is not None
    batch = "batch_size_per_rank" if per_rank else "global_batch_size"
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
