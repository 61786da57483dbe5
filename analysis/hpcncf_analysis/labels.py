"""What a configuration is called: its resources, and the settings that tell it apart. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hpcncf.tables.told import METRIC, PARAMETER

Row = Mapping[str, Any]

# Settings in the order in which a label names them; loader always, the others where they vary.
NAMED: Final = (
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
    "gmf_width",
    "mlp_width",
    "layers",
    "dropout",
    "embedding_std",
    "seed",
    "data_title",
    "data_key",
    "command",
)
OF_WORKERS: Final = {"workers", "persistent_workers", "prefetch_factor"}
LONGEST: Final = 32
MANY: Final = 5
"""Where more settings than this vary, a label names those of its own alone."""
BARE: Final = {"loader", "engine", "data_title", "command"}


def command_name(row: Row) -> str:
    """What the user called the command, or all of it; only equal ones do the same work.

    A job's command is one and the same at each of its points: no name.
    """
    if not row["by_hand"]:
        return ""
    return str((row.get("varied") or {}).get("run.command") or row.get("command") or "")


def varying(rows: Sequence[Row]) -> list[str]:
    """The named settings that tell these rows apart; the data's key only where no title does."""
    told = [name for name in _named(rows[0]) if len({repr(row.get(name)) for row in rows}) > 1]
    if len({(command_name(row), row.get("command")) for row in rows}) == len(
        {command_name(row) for row in rows}
    ):
        told = [name for name in told if name != "command"]
    return [name for name in told if name != "data_key" or "data_title" not in told]


def usual(rows: Sequence[Row], told: Sequence[str]) -> dict[str, Any]:
    """Of many settings that tell rows apart, the value that most have: labels leave it unsaid."""
    if len(told) <= MANY:
        return {}
    return {name: _commonest([row.get(name) for row in rows]) for name in told}


def _commonest(values: Sequence[Any]) -> Any:
    return max(values, key=values.count)


def _named(row: Row) -> list[str]:
    """The names in a label's order; a job's command has its parameters for one."""
    settings = [name for name in NAMED if name != "command" or row["by_hand"]]
    return settings + sorted(name for name in row if name.startswith(PARAMETER))


def settings(
    row: Row, told: Sequence[str], unsaid: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Setting -> words, of those told apart by and those always named, in a label's order.

    `unsaid`: setting -> the value that goes without saying.
    """
    unsaid = unsaid or {}
    told = [name for name in told if name not in unsaid or row.get(name) != unsaid[name]]
    words = {name: _word(name, row.get(name)) for name in _named(row) if _says(name, row, told)}
    if "command" in words:
        words["command"] = _command(row, "command" in told)
    return words


def _command(row: Row, ambiguous: bool) -> str:
    """Its name; where commands of one name differ, what was run as well."""
    texts = [command_name(row), *([row["command"]] if ambiguous else [])]
    return " · ".join(_word("command", text) for text in texts)


def _says(name: str, row: Row, told: Sequence[str]) -> bool:
    if row.get(name) is None or _means_nothing(name, row):
        return False
    always = name in {"loader", "command"} or (name == "num_workers" and row[name] > 0)
    return bool(always or name in told)


def _means_nothing(name: str, row: Row) -> bool:
    """What only another setting's value gives a meaning."""
    if name == "num_workers":
        return row.get("loader") in ("vectorized", "device")
    if name in OF_WORKERS:
        return not row.get("num_workers")
    return name == "sync_every" and row.get("sync") != "local_sgd"


def _word(name: str, value: Any) -> str:
    if name in BARE:
        return textwrap.shorten(str(value), LONGEST, placeholder="…")
    if name == "data_key":
        return f"data {value[:8]}"
    if name == "num_workers":
        return counted(value, "worker")
    if isinstance(value, bool | str):
        text = str(value).lower() if isinstance(value, bool) else value
        return textwrap.shorten(f"{called(name)} {text}", LONGEST, placeholder="…")
    if isinstance(value, int):
        return f"{called(name)} {value}"
    shown = "-".join(map(str, value)) if isinstance(value, list | tuple) else f"{value:g}"
    return f"{called(name)} {shown}"


def called(column: str) -> str:
    """A column's name as a label and a heading have it."""
    return column.removeprefix(PARAMETER).removeprefix(METRIC).replace("_", " ")


def shape(row: Row) -> str:
    """The resources in words: `2 cores`, `2 nodes × 4 ranks × 1 core`, `1 core + 1 GPU`."""
    if row["by_hand"]:
        return counted(row["cores_allocated"], "core")
    words = [counted(row["cpus_per_task"], "core")]
    if row["world_size"] > 1:
        words.insert(0, counted(row["tasks_per_node"], "rank"))
    if row["nodes"] > 1:
        words.insert(0, counted(row["nodes"], "node"))
    gpus = [counted(row["gpus_per_node"], "GPU")] if row["gpus_per_node"] else []
    return " + ".join([" × ".join(words), *gpus])


def threads(row: Row) -> list[str]:
    """Only where a rank's threads are not one for each of its cores."""
    threads = row.get("threads")
    return [] if threads in (None, row["cpus_per_task"]) else [counted(threads, "thread")]


def counted(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"
