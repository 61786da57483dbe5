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
    """A configuration that was run after all: its own figures, medians over its runs."""

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
    """What the other configurations alone would predict."""


@dataclass(frozen=True)
class Refusal:
    """Why the results support no prediction, and which runs would support one."""

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
# Sharing of the node or the GPU; rows older than these settings have none.
SHARED: Final = ("runs_per_node", "runs_per_gpu", "ranks_per_gpu", "mps")
COMPUTE: Final = ("forward_share", "backward_share", "optimizer_share", "other_share")
# Runs shorter than half of a configuration's longest one are less certain than that one alone.
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
    """Of the model; 0 if the records do not have it."""
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
    inputs = {name: kept[name] for name in (*OF_INPUT, *SHARED, "negatives", "data_key", "device")}
    # Workers compute beside the engine, and engine native makes its own instances: there the wait
    # for input is that of this engine only.
    apart = kept["engine"] == repr("native") or kept["num_workers"] != repr(0)
    return Point(
        label=label,
        cores=float(row.get("cores_allocated") or row["world_size"] * row["cpus_per_task"]),
        threads=int(row.get("threads") or row["cpus_per_task"]),
        ranks=int(row["world_size"]),
        ranks_per_node=int(row["tasks_per_node"]),
        batch=int(row["batch"]),
        negatives=int(row["negatives"]),
        compute=_key(compute),
        input=_key(inputs | compute if apart else inputs),
        sync=_key(compute | sync | {"across": repr(row["nodes"] > 1)}),
        batch_per_rank=row.get("batch_size_per_rank"),
    )


def _key(settings: Mapping[str, str]) -> Key:
    return tuple(sorted(settings.items()))


def measured_points(rows: Iterable[Row]) -> list[Measured]:
    """Each point of the completed runs that trained, in order of label."""
    needed = ("instances_per_s", "seconds_per_epoch", "instances_per_epoch")
    trained = [
        row
        for row in rows
        if row["workload"] == "ncf"
        and all(row[name] for name in needed)
        and row["input_share"] is not None
    ]
    varying = varying_settings(trained) if trained else []
    grouped: dict[tuple[Any, ...], tuple[Point, list[Row]]] = {}
    for row in trained:
        point = point_from_row(row, label_point(row, varying))
        grouped.setdefault(point.key, (point, []))[1].append(row)
    found = []
    for point, runs in grouped.values():
        longest_s = max(row["training_s"] for row in runs)
        long = [row for row in runs if row["training_s"] >= LONG_ENOUGH * longest_s]
        found.append(_measured(point, long))
    return sorted(found, key=lambda one: one.point.label)


def label_point(row: Row, varying: Sequence[str]) -> str:
    """A configuration's label, without settings that cost nothing."""
    words = label_settings(row, [name for name in varying if name not in COSTLESS])
    return " · ".join([format_shape(row), *format_threads(row), *words.values()])


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


# Computing by N threads: 1/N, 1 and N - 1 are the terms of the USL's time (Gunther 2007), of which
# Amdahl's law has the first two. An all-reduce over R ranks in a ring takes 2 (R - 1) messages of
# 1/R of the bytes (Thakur, Rabenseifner and Gropp 2005); if each sends all it has to all others,
# they are R - 1.

# Positives of a rank's step are counted in these, so that coefficients are of like size.
UNIT: Final = 256.0

Term = Callable[[Point, float], float]
"""Of a point, and the bytes of each rank's step."""


def ring(point: Point) -> tuple[float, float]:
    """Messages of an exchange that follow one another, and how often a rank's bytes go out."""
    others = point.ranks - 1
    if dict(point.sync).get("sync") == repr("rows"):
        return float(others), float(others)
    return 2.0 * others, 2.0 * others / point.ranks


TERMS: Final[dict[str, Term]] = {
    "step": lambda _, __: 1.0,
    "positive": lambda point, _: point.share / UNIT,
    "crowding": lambda point, _: point.share / UNIT * (point.ranks_per_node - 1),
    "positive by thread": lambda point, _: point.share / UNIT / point.threads,
    "positive and threads": lambda point, _: point.share / UNIT * (point.threads - 1),
    "step by thread": lambda point, _: 1 / point.threads,
    "step and threads": lambda point, _: float(point.threads - 1),
    "message": lambda point, _: ring(point)[0],
    "megabyte": lambda point, bytes_: ring(point)[1] * bytes_ / 1e6,
}
_LINE: Final = ("step", "positive")
_CROWD: Final = (*_LINE, "crowding")
_SHARED: Final = (*_CROWD, "positive by thread")
_USL: Final = (*_SHARED, "positive and threads")
_INPUT: Final = {
    "a cost of each step and of each instance": _LINE,
    "the same, and ranks on one node in each other's way": _CROWD,
    "instances shared by the threads": _SHARED,
}


@dataclass(frozen=True)
class Axis:
    """A number of a point, and how many of its values must have been run for one that was not."""

    name: str
    value: Callable[[Point], float]
    between: int
    beyond: int


THREADS: Final = Axis("threads", lambda point: point.threads, 3, 4)
ON_NODE: Final = Axis("ranks on a node", lambda point: point.ranks_per_node, 3, 4)
RANKS: Final = Axis("ranks", lambda point: point.ranks, 3, 4)
# A step's cost is a straight line in its positives: two points make one, a third checks it.
SHARE: Final = Axis("positives of a rank's step", lambda point: point.share, 2, 3)


@dataclass(frozen=True)
class Kind:
    """What a part of a step depends on."""

    family: Callable[[Point], Key]
    """Equal for points with the same costs in this part."""
    cost: Callable[[Measured], float]
    axes: tuple[Axis, ...]
    laws: Mapping[str, tuple[str, ...]]
    """Name -> terms, the simplest law first."""


KINDS: Final = {
    "compute": Kind(
        lambda point: point.compute,
        lambda one: one.compute_s,
        (THREADS, ON_NODE, SHARE),
        {
            **_INPUT,
            "instances shared by the threads, which cost one another time": _USL,
            "steps and instances shared by the threads": (
                *_USL,
                "step by thread",
                "step and threads",
            ),
        },
    ),
    "input": Kind(lambda point: point.input, lambda one: one.input_s, (ON_NODE, SHARE), _INPUT),
    "sync": Kind(
        lambda point: point.sync,
        lambda one: one.sync_s,
        (RANKS,),
        {"latency + bytes / bandwidth": ("message", "megabyte")},
    ),
    "bytes": Kind(
        lambda point: point.sync,
        lambda one: one.sync_bytes,
        (SHARE,),
        {"as many in each step": ("step",), "by the rows of a step": _LINE},
    ),
}


# Repeats differ by as much: a law that comes nearer, as one with a term a point, is no likelier.
NOISE: Final = 0.05
# Share of a vector's length outside of the measured ones' span, below which it is rounding.
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


def fit_terms(
    law: str, features: Sequence[Sequence[float]], seconds: Sequence[float], scale: Sequence[float]
) -> tuple[Fit, float]:
    """The fit with the least sum of squares of (error / scale), and its AIC.

    Of two laws the one with the lower AIC is likelier to hold for points that were not measured
    (Akaike 1974); here no error counts for less than `NOISE`.
    """
    weights = 1 / np.asarray(scale, dtype=float)
    matrix = np.asarray(features, dtype=float)
    scaled, wanted = matrix * weights[:, None], np.asarray(seconds, dtype=float) * weights
    coefficients = fit_non_negative(scaled, wanted[None])[0]
    error = float(np.mean((scaled @ coefficients - wanted) ** 2))
    _, sizes, directions = np.linalg.svd(matrix, full_matrices=False)
    span: Floats = directions[sizes > ROUNDING * sizes.max(initial=1.0)]
    unlikely = len(wanted) * log(max(error, NOISE**2)) + 2 * len(span)
    return Fit(law, coefficients, span), unlikely


# As a fit of speed-up: never beyond four times what was measured.
FARTHEST: Final = 4


def refusal(name: str, asked: Point, known: Sequence[Point]) -> Refusal | None:
    """Why this part of the asked point's step cannot be predicted from the known ones, if so."""
    if not known:
        return _unknown_settings(name, asked)
    for axis in KINDS[name].axes:
        value, values = axis.value(asked), sorted({axis.value(one) for one in known})
        where = f"{axis.name} {value:g}: run were {', '.join(f'{one:g}' for one in values)}"
        low, high = values[0], values[-1]
        needed, side = (axis.between, "between") if low < value < high else (axis.beyond, "beyond")
        if not low / FARTHEST <= value <= FARTHEST * high:
            reason = f"{where}; nothing is predicted beyond {FARTHEST} times what was run"
        elif value not in values and len(values) < needed:
            reason = f"{where}; a value {side} them needs {needed} that were run"
        else:
            continue
        return Refusal(asked.label, reason, _settings_for(axis, asked))
    return None


def _unknown_settings(name: str, asked: Point) -> Refusal:
    """No run had these settings."""
    settings = dict(asked.input if name == "input" else asked.compute)
    if name in ("sync", "bytes"):
        what = f"several ranks with engine {settings.get('engine', '?').strip(chr(39))}"
        return Refusal(asked.label, f"no run of {what} and these settings shows what they exchange")
    names = ("loader", "num_workers") if name == "input" else ("engine", "optimizer")
    known = [f"{each} {settings[each].strip(chr(39))}" for each in names if each in settings]
    return Refusal(
        asked.label,
        f"no run shows the {name} of {', '.join(known)} with otherwise these settings",
    )


def _settings_for(axis: Axis, asked: Point) -> tuple[str, ...]:
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
    """One part of a step: its cost, and the law that it follows."""

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
    if isinstance(compute, Refusal):
        return compute
    if isinstance(input_, Refusal):
        return input_
    if asked.ranks == 1:
        return Step(compute, input_, None)
    several = [one for one in known if one.point.ranks > 1]
    sent = part("bytes", asked, several)
    sync = sent if isinstance(sent, Refusal) else part("sync", asked, several, sent.value)
    return sync if isinstance(sync, Refusal) else Step(compute, input_, sync)


def part(name: str, asked: Point, known: Sequence[Measured], bytes_: float = 0.0) -> Part | Refusal:
    """By the likeliest of the laws that the measured points determine where it is asked.

    `bytes_`: of the asked point's step, for each rank.
    """
    kind = KINDS[name]
    related = [one for one in known if kind.family(one.point) == kind.family(asked)]
    refused = refusal(name, asked, [one.point for one in related])
    if refused:
        return refused
    costs = [kind.cost(one) for one in related]
    # An error is set against the whole step, so that a part that hardly counts does not.
    scales = [max(one.sync_bytes, 1.0) if name == "bytes" else one.step_s for one in related]
    found: list[tuple[float, int, Part]] = []
    for number, (law, names) in enumerate(kind.laws.items()):
        terms = [TERMS[each] for each in names]
        rows = [[term(one.point, one.sync_bytes) for term in terms] for one in related]
        fit, unlikely = fit_terms(law, rows, costs, scales)
        wanted = [term(asked, bytes_) for term in terms]
        if fit.knows(wanted):
            found.append((unlikely, number, Part(fit.at(wanted), fit)))
    if not found:
        return Refusal(
            asked.label, f"the runs do not separate what its {name} depends on: too few differ"
        )
    return min(found, key=lambda each: each[:2])[2]
