"""The model of a step's time: laws, non-negative least squares, range of validity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log
from statistics import median
from typing import Any, Final

import numpy as np

from hpcncf.job.spec import Model, Training
from hpcncf_analysis.configurations import (
    format_shape,
    format_threads,
    label_settings,
    varying_settings,
)
from hpcncf_analysis.usl import Floats, fit_non_negative


@dataclass(frozen=True)
class Prediction:
    """Of training alone, as `seconds_per_epoch` of the tables: neither evaluation nor start-up."""

    label: str
    seconds_per_epoch: float
    low: float | None
    high: float | None
    """The interval's ends; None where too few configurations could be held out."""
    instances_per_s: float
    core_s_per_epoch: float
    efficiency: float | None
    """Parallel efficiency against `base`; None where nothing of its settings was run."""
    base: str | None
    """The measured configuration of the fewest cores with the same settings."""
    phases: dict[str, float]
    """Seconds of a step, by part: compute, input, sync."""
    basis: str
    """What it rests on, in words."""


@dataclass(frozen=True)
class Ran:
    """Of one that was run after all: its own figures, medians over its runs."""

    label: str
    seconds_per_epoch: float
    low: float | None
    high: float | None
    """The range of its runs; None of one run."""
    runs: int
    instances_per_s: float
    core_s_per_epoch: float
    efficiency: float | None
    base: str | None
    phases: dict[str, float]
    without_it: Prediction | Refusal
    """What the other configurations alone would have told."""


@dataclass(frozen=True)
class Refusal:
    """Why the results support no prediction, and which runs would."""

    label: str
    reason: str
    run: tuple[str, ...] = ()
    """`-s` settings of runs to make; empty where the configuration itself is the one to run."""


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


def point_from_row(row: Row, label: str) -> Point:
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
        input=_key(_input_group(kept, compute)),
        sync=_key(compute | sync | {"across": repr(row["nodes"] > 1)}),
        batch_per_rank=row.get("batch_size_per_rank"),
    )


def _input_group(kept: dict[str, str], compute: dict[str, str]) -> dict[str, str]:
    """Workers compute beside the engine, and engine native makes its own instances: there the time
    waited for input is that of this engine only."""
    own = {name: kept[name] for name in (*OF_INPUT, *SHARED, "negatives", "data_key", "device")}
    apart = kept["engine"] == repr("native") or kept["num_workers"] != repr(0)
    return own | compute if apart else own


def _key(settings: Mapping[str, str]) -> Key:
    return tuple(sorted(settings.items()))


def measured(rows: Iterable[Row]) -> list[Measured]:
    """Each point of the completed runs that trained, in order of label."""
    trained = [row for row in rows if _is_usable(row)]
    told = varying_settings(trained) if trained else []
    grouped: dict[tuple[Any, ...], tuple[Point, list[Row]]] = {}
    for row in trained:
        point = point_from_row(row, called(row, told))
        grouped.setdefault(point.key, (point, []))[1].append(row)
    found = [_measured(point, _longest(runs)) for point, runs in grouped.values()]
    return sorted(found, key=lambda one: one.point.label)


def called(row: Row, told: Sequence[str]) -> str:
    """A configuration's label, without what costs nothing."""
    words = label_settings(row, [name for name in told if name not in COSTLESS])
    return " · ".join([format_shape(row), *format_threads(row), *words.values()])


def _is_usable(row: Row) -> bool:
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


# Computing by N threads: 1/N, 1 and N - 1 are the terms of the USL's time (Gunther 2007), of
# which
# Amdahl's law has the first two. An all-reduce over R ranks in a ring takes 2 (R - 1) messages
# of
# 1/R of the bytes (Thakur, Rabenseifner and Gropp 2005); where each sends all it has to all
# others,
# they are R - 1.

Features = Callable[[Point, float], list[float]]
"""Of a point, and the bytes of each rank's step."""

# A share of a step in these many positives, so that coefficients are of like size.
UNIT: Final = 256.0


def _share(point: Point) -> float:
    return point.share / UNIT


def _flat(_: Point, __: float) -> list[float]:
    return [1.0]


def _by_share(point: Point, _: float) -> list[float]:
    return [1.0, _share(point)]


def _crowded(point: Point, _: float) -> list[float]:
    return [1.0, _share(point), _share(point) * (point.ranks_per_node - 1)]


def _amdahl(point: Point, bytes_: float) -> list[float]:
    return [*_crowded(point, bytes_), _share(point) / point.threads]


def _by_threads(point: Point, _: float) -> list[float]:
    share, threads = _share(point), point.threads
    crowd = point.ranks_per_node - 1
    return [1.0, share, share / threads, share * (threads - 1), share * crowd]


def _all_by_threads(point: Point, bytes_: float) -> list[float]:
    threads = point.threads
    return [*_by_threads(point, bytes_), 1 / threads, float(threads - 1)]


def ring(point: Point) -> tuple[float, float]:
    """Messages of an exchange that follow one another, and how often a rank's bytes go out."""
    others = point.ranks - 1
    if dict(point.sync).get("sync") == repr("rows"):
        return float(others), float(others)
    return 2.0 * others, 2.0 * others / point.ranks


def _exchange(point: Point, bytes_: float) -> list[float]:
    messages, times = ring(point)
    return [messages, times * bytes_ / 1e6]


LAWS: Final[dict[str, dict[str, Features]]] = {
    "compute": {
        "a cost of each step and of each instance": _by_share,
        "the same, and ranks on one node in each other's way": _crowded,
        "instances shared by the threads": _amdahl,
        "instances shared by the threads, which cost one another time": _by_threads,
        "steps and instances shared by the threads": _all_by_threads,
    },
    "input": {
        "a cost of each step and of each instance": _by_share,
        "the same, and ranks on one node in each other's way": _crowded,
        "instances shared by the threads": _amdahl,
    },
    "sync": {"latency + bytes / bandwidth": _exchange},
    "bytes": {"as many in each step": _flat, "by the rows of a step": _by_share},
}
"""Part -> its laws by name, simplest first."""


def family_laws(part: str, point: Point) -> object:
    """Points of one family have the same costs in this part."""
    return {
        "compute": point.compute,
        "input": point.input,
        "sync": point.sync,
        "bytes": point.sync,
    }[part]


def cost(part: str, one: Measured) -> float:
    return {
        "compute": one.compute_s,
        "input": one.input_s,
        "sync": one.sync_s,
        "bytes": one.sync_bytes,
    }[part]


def scale(part: str, one: Measured) -> float:
    """What an error is set against: the whole step, so that a part that hardly counts does not."""
    return max(one.sync_bytes, 1.0) if part == "bytes" else one.step_s


# Repeats differ by that: a law that comes nearer, as one with a term a point does, is no likelier.
NOISE: Final = 0.05
# Of a vector's length: what lies outside of the measured ones' span by less is rounding.
ROUNDING: Final = 1e-6


@dataclass(frozen=True)
class Fit:
    """Seconds as a sum of features, each times a coefficient of 0 or more."""

    law: str
    coefficients: Floats
    """[feature]"""
    span: Floats
    """[direction, feature]: an orthonormal basis of the features measured."""

    def at(self, features: Sequence[float]) -> float:
        return float(np.dot(self.coefficients, np.asarray(features, dtype=float)))

    def knows(self, features: Sequence[float]) -> bool:
        """Whether every coefficient that fits as well would say the same here."""
        asked = np.asarray(features, dtype=float)
        outside = asked - self.span.T @ (self.span @ asked)
        return float(np.linalg.norm(outside)) <= ROUNDING * max(float(np.linalg.norm(asked)), 1.0)


def fitted(
    law: str, features: Sequence[Sequence[float]], seconds: Sequence[float], scale: Sequence[float]
) -> tuple[Fit, float]:
    """The fit with the least sum of squares of (error / scale), and its AIC.

    Of two laws the one with the lower AIC is the likelier to tell what was not measured (Akaike
    1974); here no error counts for less than `NOISE`.
    """
    weights = 1 / np.asarray(scale, dtype=float)
    matrix = np.asarray(features, dtype=float)
    scaled, wanted = matrix * weights[:, None], np.asarray(seconds, dtype=float) * weights
    coefficients = fit_non_negative(scaled, wanted[None])[0]
    error = float(np.mean((scaled @ coefficients - wanted) ** 2))
    span = _span(matrix)
    unlikely = len(wanted) * log(max(error, NOISE**2)) + 2 * len(span)
    return Fit(law, coefficients, span), unlikely


def _span(matrix: Floats) -> Floats:
    _, sizes, directions = np.linalg.svd(matrix, full_matrices=False)
    kept: Floats = directions[sizes > ROUNDING * sizes.max(initial=1.0)]
    return kept


# As a fit of speed-up: never beyond four times what was measured.
FARTHEST: Final = 4


@dataclass(frozen=True)
class Axis:
    """A number of a point, and how many of its values must have been run for one that was not."""

    name: str
    value: Callable[[Point], float]
    between: int
    beyond: int


THREADS = Axis("threads", lambda point: point.threads, 3, 4)
ON_NODE = Axis("ranks on a node", lambda point: point.ranks_per_node, 3, 4)
RANKS = Axis("ranks", lambda point: point.ranks, 3, 4)
# A step's cost is a straight line in its positives: two points make one, a third tells if it is.
SHARE = Axis("positives of a rank's step", lambda point: point.share, 2, 3)
AXES: Final[dict[str, tuple[Axis, ...]]] = {
    "compute": (THREADS, ON_NODE, SHARE),
    "input": (ON_NODE, SHARE),
    "sync": (RANKS,),
    "bytes": (SHARE,),
}


def refusal(part: str, asked: Point, known: Sequence[Point]) -> Refusal | None:
    """Why this part of the asked one's step cannot be told from the known ones; None: it can."""
    if not known:
        return _nothing(part, asked)
    for axis in AXES[part]:
        reason = _beyond(axis, axis.value(asked), sorted({axis.value(one) for one in known}))
        if reason:
            return Refusal(asked.label, reason, _runs(axis, asked))
    return None


def _nothing(part: str, asked: Point) -> Refusal:
    """The settings themselves were not run."""
    if part in ("sync", "bytes"):
        settings = dict(asked.compute)
        what = f"several ranks with engine {_plain(settings, 'engine')}"
        return Refusal(asked.label, f"no run of {what} and these settings tells what they exchange")
    settings = dict(asked.input if part == "input" else asked.compute)
    names = ("loader", "num_workers") if part == "input" else ("engine", "optimizer")
    what = ", ".join(f"{name} {_plain(settings, name)}" for name in names if name in settings)
    return Refusal(asked.label, f"no run shows the {part} of {what} with otherwise these settings")


def _plain(settings: dict[str, str], name: str) -> str:
    return settings.get(name, "?").strip("'")


def _beyond(axis: Axis, value: float, values: Sequence[float]) -> str | None:
    if value in values:
        return None
    told = f"{axis.name} {value:g}: run were {_listed(values)}"
    low, high = values[0], values[-1]
    if not low / FARTHEST <= value <= FARTHEST * high:
        return f"{told}; nothing is predicted beyond {FARTHEST} times what was run"
    within = low < value < high
    needed = axis.between if within else axis.beyond
    if len(values) >= needed:
        return None
    where = "between them" if within else "beyond them"
    return f"{told}; a value {where} needs {needed} that were run"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _runs(axis: Axis, asked: Point) -> tuple[str, ...]:
    """The settings of the job file that make this number."""
    if axis is SHARE:
        return batch(asked, asked.batch)
    if axis is THREADS:
        cores = asked.cores / asked.ranks
        key = "resources.cpus_per_task" if cores == asked.threads else "training.threads"
        return (f"{key}={asked.threads}",)
    nodes = asked.ranks // asked.ranks_per_node
    several = (f"resources.nodes={nodes}",) if nodes > 1 else ()
    return (*several, f"resources.tasks_per_node={asked.ranks_per_node}")


def batch(asked: Point, positives: int) -> tuple[str, ...]:
    """The setting for so many positives of a step over all ranks, as its job file spells it."""
    if asked.batch_per_rank is None:
        return (f"training.global_batch_size={positives}",)
    parts = asked.batch // (asked.batch_per_rank * asked.ranks)  # `accumulate`
    return (f"training.batch_size_per_rank={max(positives // (asked.ranks * parts), 1)}",)


@dataclass(frozen=True)
class Part:
    """One part of a step: its cost, and the law that told it."""

    value: float
    fit: Fit


@dataclass(frozen=True)
class Step:
    """Seconds of one optimiser step, by part."""

    compute: Part
    input: Part
    sync: Part | None
    """None of one rank."""

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    @property
    def phases(self) -> dict[str, float]:
        sync = {"sync": self.sync.value} if self.sync else {}
        return {"compute": self.compute.value, "input": self.input.value, **sync}


def step(asked: Point, known: Sequence[Measured]) -> Step | Refusal:
    """What a step of this point takes, by what was measured of others."""
    compute, input_ = part("compute", asked, known), part("input", asked, known)
    for each in (compute, input_):
        if isinstance(each, Refusal):
            return each
    assert isinstance(compute, Part)
    assert isinstance(input_, Part)
    if asked.ranks == 1:
        return Step(compute, input_, None)
    sync = exchange(asked, known)
    return sync if isinstance(sync, Refusal) else Step(compute, input_, sync)


def exchange(asked: Point, known: Sequence[Measured]) -> Part | Refusal:
    several = [one for one in known if one.point.ranks > 1]
    sent = part("bytes", asked, several)
    return sent if isinstance(sent, Refusal) else part("sync", asked, several, sent.value)


def part(name: str, asked: Point, known: Sequence[Measured], bytes_: float = 0.0) -> Part | Refusal:
    """By the likeliest of the laws that the measured points determine where it is asked.

    `bytes_`: of the asked point's step, for each rank.
    """
    family = family_laws(name, asked)
    related = [one for one in known if family_laws(name, one.point) == family]
    refused = refusal(name, asked, [one.point for one in related])
    if refused:
        return refused
    found: list[tuple[float, int, Part]] = []
    for number, (law, features) in enumerate(LAWS[name].items()):
        fit, unlikely = _fit(name, law, features, related)
        wanted = features(asked, bytes_)
        if fit.knows(wanted):
            found.append((unlikely, number, Part(fit.at(wanted), fit)))
    if not found:
        return Refusal(
            asked.label, f"the runs do not separate what its {name} depends on: too few differ"
        )
    return min(found, key=lambda each: each[:2])[2]


def _fit(name: str, law: str, features: Features, related: Sequence[Measured]) -> tuple[Fit, float]:
    costs = [cost(name, one) for one in related]
    rows = [features(one.point, one.sync_bytes) for one in related]
    scales = [scale(name, one) for one in related]
    return fitted(law, rows, costs, scales)
