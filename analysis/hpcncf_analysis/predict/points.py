"""What a configuration is to the model: a few numbers, and the settings it keeps apart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any, Final

from hpcncf.spec import Model, Training
from hpcncf_analysis import labels

Row = Mapping[str, Any]
Key = tuple[tuple[str, str], ...]

# The numbers of a point; the batch has several spellings.
SHAPE: Final = {"threads", "global_batch_size", "batch_size_per_rank"}
# These change what is learnt or how long it goes on, not what a step costs.
COSTLESS: Final = {
    *("epochs", "max_steps", "lr", "lr_scale", "lr_base_batch", "seed"),
    *("evaluation", "checkpoint_every", "checkpoint_every_min"),
}
OF_INPUT: Final = {
    *("loader", "num_workers", "workers", "persistent_workers", "prefetch_factor", "collate"),
    *("pin_memory", "non_blocking", "prefetch_to_device"),
}
OF_SYNC: Final = {
    *("sync", "sync_every", "bucket_mb", "gradient_as_bucket_view", "static_graph", "backend"),
}
# Who shares the node or the GPU; rows older than these settings have none.
SHARED: Final = ("runs_per_node", "runs_per_gpu", "ranks_per_gpu", "mps")
COMPUTE: Final = ("forward_share", "backward_share", "optimizer_share", "other_share")
# Shorter than half of its longest run a configuration's runs tell less than that one.
LONG_ENOUGH: Final = 0.5


@dataclass(frozen=True)
class Point:
    label: str
    cores: float
    threads: int
    """Of each rank."""
    ranks: int
    ranks_per_node: int
    batch: int
    """Positives of a step over all ranks."""
    negatives: int
    compute: Key
    """The settings that a step's computing depends on."""
    input: Key
    sync: Key
    batch_per_rank: int | None = None
    """As the job file spells the batch; None: over all ranks."""

    @property
    def share(self) -> float:
        """Positives of a step for each rank."""
        return self.batch / self.ranks

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for two runs whose steps cost the same."""
        shape = (self.cores, self.threads, self.ranks, self.ranks_per_node, self.batch)
        return (*shape, self.compute, self.input, self.sync)

    @property
    def settings(self) -> tuple[Key, ...]:
        """All but its size."""
        return (self.compute, self.input, self.sync)


@dataclass(frozen=True)
class Measured:
    """A point that was run: medians over its runs, in seconds of a step."""

    point: Point
    step_s: float
    compute_s: float
    input_s: float
    sync_s: float
    sync_bytes: float
    """Of each rank's step."""
    instances_per_epoch: float
    seconds_per_epoch: float
    low: float
    high: float
    """The range of `seconds_per_epoch` over the runs."""
    parameters: int
    """Of the model; 0 where the records do not tell."""
    runs: int

    @property
    def instances_per_s(self) -> float:
        return self.point.batch * (1 + self.point.negatives) / self.step_s

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of a step, by part."""
        sync = {"sync": self.sync_s} if self.point.ranks > 1 else {}
        return {"compute": self.compute_s, "input": self.input_s, **sync}

    @property
    def epoch_factor(self) -> float:
        """A whole epoch against its counted steps alone: the wait for its first batch is in it."""
        steps = steps_of(self.instances_per_epoch, self.point)
        return self.seconds_per_epoch / (steps * self.step_s)


def steps_of(instances_per_epoch: float, point: Point) -> int:
    positives = instances_per_epoch / (1 + point.negatives)
    return ceil(positives / point.batch)


def of_row(row: Row, label: str) -> Point:
    """`row`: of the table of runs, or `tables.rows.settings` of a run that is only planned."""
    settings = {name: row.get(name) for name in (*Training.model_fields, *Model.model_fields)}
    settings |= {name: row.get(name) for name in ("device", "backend", "data_key")}
    settings |= {"gpus_per_rank": row["gpus_per_node"] / row["tasks_per_node"]}
    settings |= {name: int(row.get(name) or name != "mps") for name in SHARED}
    kept = {name: repr(value) for name, value in settings.items() if name not in SHAPE | COSTLESS}
    compute = {name: value for name, value in kept.items() if name not in OF_INPUT | OF_SYNC}
    sync = {name: value for name, value in kept.items() if name in OF_SYNC}
    return Point(
        label=label,
        cores=float(row.get("cores_allocated") or row["world_size"] * row["cpus_per_task"]),
        threads=int(row.get("threads") or row["cpus_per_task"]),
        ranks=int(row["world_size"]),
        ranks_per_node=int(row["tasks_per_node"]),
        batch=int(row["batch"]),
        negatives=int(row["negatives"]),
        compute=_key(compute),
        input=_key(_of_input(kept, compute)),
        sync=_key(compute | sync | {"across": repr(row["nodes"] > 1)}),
        batch_per_rank=row.get("batch_size_per_rank"),
    )


def _of_input(kept: dict[str, str], compute: dict[str, str]) -> dict[str, str]:
    """Workers compute beside the engine, and engine native makes its own instances: there the time
    waited for input is that of this engine only."""
    own = {name: kept[name] for name in (*OF_INPUT, *SHARED, "negatives", "data_key", "device")}
    apart = kept["engine"] == repr("native") or kept["num_workers"] != repr(0)
    return own | compute if apart else own


def _key(settings: Mapping[str, str]) -> Key:
    return tuple(sorted(settings.items()))


def measured(rows: Iterable[Row]) -> list[Measured]:
    """Each point of the completed runs that trained, in order of label."""
    trained = [row for row in rows if _tells(row)]
    told = labels.varying(trained) if trained else []
    grouped: dict[tuple[Any, ...], tuple[Point, list[Row]]] = {}
    for row in trained:
        point = of_row(row, called(row, told))
        grouped.setdefault(point.key, (point, []))[1].append(row)
    found = [_measured(point, _longest(runs)) for point, runs in grouped.values()]
    return sorted(found, key=lambda one: one.point.label)


def called(row: Row, told: Sequence[str]) -> str:
    """A configuration's label, without what costs nothing."""
    words = labels.settings(row, [name for name in told if name not in COSTLESS])
    return " · ".join([labels.shape(row), *labels.threads(row), *words.values()])


def _tells(row: Row) -> bool:
    needed = ("instances_per_s", "seconds_per_epoch", "instances_per_epoch")
    told = all(row[name] for name in needed) and row["input_share"] is not None
    return row["workload"] == "ncf" and told


def _longest(rows: Sequence[Row]) -> list[Row]:
    most = max(row["training_s"] for row in rows)
    return [row for row in rows if row["training_s"] >= LONG_ENOUGH * most]


def _measured(point: Point, rows: Sequence[Row]) -> Measured:
    steps = [point.batch * (1 + point.negatives) / row["instances_per_s"] for row in rows]
    epochs = [row["seconds_per_epoch"] for row in rows]

    def part(names: Sequence[str]) -> float:
        shares = [sum(row.get(name) or 0.0 for name in names) for row in rows]
        return float(median(share * step for share, step in zip(shares, steps, strict=True)))

    return Measured(
        point=point,
        step_s=median(steps),
        compute_s=part((*COMPUTE, "fused_share")),
        input_s=part(("input_share",)),
        sync_s=part(("sync_share",)),
        sync_bytes=median(row.get("sync_bytes_per_step") or 0.0 for row in rows),
        instances_per_epoch=median(row["instances_per_epoch"] for row in rows),
        seconds_per_epoch=median(epochs),
        low=min(epochs),
        high=max(epochs),
        parameters=max(row.get("parameters") or 0 for row in rows),
        runs=len(rows),
    )
