"""Predict a configuration from the runs of others, part by part of a step, with an interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, log
from statistics import median
from typing import Any, Final

import numpy as np

from hpcncf.job.spec import Model, Training
from hpcncf_analysis.configurations import (
    completed_runs,
    format_shape,
    format_threads,
    label_settings,
    varying_settings,
)
from hpcncf_analysis.formatting import format_interval, format_number, format_percent
from hpcncf_analysis.usl import fit_non_negative

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
COMPUTE: Final = (
    *("forward_share", "backward_share", "optimizer_share", "other_share", "fused_share"),
)
# Runs shorter than half of a configuration's longest one are less certain than that one alone.
LONG_ENOUGH: Final = 0.5
# Errors of fewer held-out configurations make no interval.
FEWEST: Final = 3
# Of the interval's bounds at either end lies outside.
ONE_IN: Final = 10
# Repeats differ by as much: a law that comes nearer, as one with a term a point, is no likelier.
NOISE: Final = 0.05
# Share of a vector's length outside of the measured ones' span, below which it is rounding.
ROUNDING: Final = 1e-6
# As a fit of speed-up: never beyond four times what was measured.
FARTHEST: Final = 4
# Positives of a rank's step are counted in these, so that coefficients are of like size.
UNIT: Final = 256.0


@dataclass(frozen=True)
class Refusal:
    """Why the results support no prediction, and which runs would support one."""

    label: str
    reason: str
    run: tuple[str, ...] = ()
    """`-s` settings of runs to make; empty where the configuration itself is the one to run."""


@dataclass(frozen=True)
class Prediction:
    """Of training alone, as `seconds_per_epoch` of the tables: neither evaluation nor start-up. A
    configuration that was run has its own figures, medians over its runs."""

    label: str
    seconds_per_epoch: float
    low: float | None
    high: float | None
    """The ends of the interval, or of the range of its runs; None where too few were run."""
    instances_per_s: float
    core_s_per_epoch: float
    efficiency: float | None
    """Parallel efficiency against `base`; None where nothing of its settings was run."""
    base: str | None
    """The measured configuration of the fewest cores with the same settings."""
    phases: dict[str, float]
    """Seconds of a step, by part: compute, input, sync."""
    basis: str = ""
    """The laws it rests on."""
    runs: int = 0
    """Of the configuration itself; 0: it was predicted."""


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

    def steps(self, instances_per_epoch: float) -> int:
        return ceil(instances_per_epoch / (1 + self.negatives) / self.batch)


@dataclass(frozen=True)
class Measured:
    """A point that was run: medians over its runs, in seconds of a step."""

    point: Point
    step_s: float
    costs: Mapping[str, float]
    """Of a step, by part: `compute`, `input` and `sync` in seconds, `bytes` of each rank."""
    instances_per_epoch: float
    seconds_per_epoch: float
    low: float
    high: float
    """The range of `seconds_per_epoch` over the runs."""
    runs: int

    @property
    def instances_per_s(self) -> float:
        return self.point.batch * (1 + self.point.negatives) / self.step_s

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of a step, by part."""
        names = ("compute", "input", "sync") if self.point.ranks > 1 else ("compute", "input")
        return {name: self.costs[name] for name in names}

    @property
    def epoch_factor(self) -> float:
        """A whole epoch against its counted steps alone: the wait for its first batch is in it."""
        return self.seconds_per_epoch / (self.point.steps(self.instances_per_epoch) * self.step_s)


def point_from_row(row: Row, varying: Sequence[str]) -> Point:
    """`row`: of the table of runs, or the settings of a run that is only planned. `varying`: the
    settings that its label names."""
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
    words = label_settings(row, [name for name in varying if name not in COSTLESS])
    return Point(
        label=" · ".join([format_shape(row), *format_threads(row), *words.values()]),
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
        point = point_from_row(row, varying)
        grouped.setdefault(point.key, (point, []))[1].append(row)
    found = []
    for point, runs in grouped.values():
        longest_s = max(row["training_s"] for row in runs)
        long = [row for row in runs if row["training_s"] >= LONG_ENOUGH * longest_s]
        found.append(_measured(point, long))
    return sorted(found, key=lambda one: one.point.label)


def _measured(point: Point, rows: Sequence[Row]) -> Measured:
    steps = [point.batch * (1 + point.negatives) / row["instances_per_s"] for row in rows]
    epochs = [row["seconds_per_epoch"] for row in rows]

    def part(*names: str) -> float:
        shares = [sum(row.get(name) or 0.0 for name in names) for row in rows]
        return float(median(share * step for share, step in zip(shares, steps, strict=True)))

    return Measured(
        point=point,
        step_s=median(steps),
        costs={
            "compute": part(*COMPUTE),
            "input": part("input_share"),
            "sync": part("sync_share"),
            "bytes": median(row.get("sync_bytes_per_step") or 0.0 for row in rows),
        },
        instances_per_epoch=median(row["instances_per_epoch"] for row in rows),
        seconds_per_epoch=median(epochs),
        low=min(epochs),
        high=max(epochs),
        runs=len(rows),
    )


# Computing by N threads: 1/N, 1 and N - 1 are the terms of the USL's time (Gunther 2007), of which
# Amdahl's law has the first two. An all-reduce over R ranks in a ring takes 2 (R - 1) messages of
# 1/R of the bytes (Thakur, Rabenseifner and Gropp 2005); if each sends all it has to all others,
# they are R - 1.


def exchange(point: Point) -> tuple[float, float]:
    """Messages of an exchange that follow one another, and how often a rank's bytes go out."""
    others = point.ranks - 1
    if dict(point.sync).get("sync") == repr("rows"):
        return float(others), float(others)
    return 2.0 * others, 2.0 * others / point.ranks


TERMS: Final[dict[str, Callable[[Point, float], float]]] = {
    "step": lambda _, __: 1.0,
    "positive": lambda point, _: point.share / UNIT,
    "crowding": lambda point, _: point.share / UNIT * (point.ranks_per_node - 1),
    "positive by thread": lambda point, _: point.share / UNIT / point.threads,
    "positive and threads": lambda point, _: point.share / UNIT * (point.threads - 1),
    "step by thread": lambda point, _: 1 / point.threads,
    "step and threads": lambda point, _: float(point.threads - 1),
    "message": lambda point, _: exchange(point)[0],
    "megabyte": lambda point, sync_bytes: exchange(point)[1] * sync_bytes / 1e6,
}
"""Of a point, and the bytes of each rank's step."""
_LINE: Final = ("step", "positive")
_CROWD: Final = (*_LINE, "crowding")
_SHARED: Final = (*_CROWD, "positive by thread")
_USL: Final = (*_SHARED, "positive and threads")
_INPUT: Final = {
    "a cost of each step and of each instance": _LINE,
    "the same, and ranks on one node in each other's way": _CROWD,
    "instances shared by the threads": _SHARED,
}


LAWS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "compute": {
        **_INPUT,
        "instances shared by the threads, which cost one another time": _USL,
        "steps and instances shared by the threads": (
            *(*_USL, "step by thread", "step and threads"),
        ),
    },
    "input": _INPUT,
    "bytes": {"as many in each step": ("step",), "by the rows of a step": _LINE},
    "sync": {"latency + bytes / bandwidth": ("message", "megabyte")},
}
"""Part of a step -> name of a law -> its terms, the simplest law first."""


@dataclass(frozen=True)
class Axis:
    """A number of a point, and how many of its values must have been run for one that was not."""

    name: str
    attribute: str
    between: int
    beyond: int


THREADS: Final = Axis("threads", "threads", 3, 4)
ON_NODE: Final = Axis("ranks on a node", "ranks_per_node", 3, 4)
RANKS: Final = Axis("ranks", "ranks", 3, 4)
# A step's cost is a straight line in its positives: two points make one, a third checks it.
SHARE: Final = Axis("positives of a rank's step", "share", 2, 3)
AXES: Final = {
    "compute": (THREADS, ON_NODE, SHARE),
    "input": (ON_NODE, SHARE),
    "bytes": (SHARE,),
    "sync": (RANKS,),
}


@dataclass(frozen=True)
class Step:
    """One optimiser step: seconds of each part, and the law that it follows."""

    phases: dict[str, float]
    laws: dict[str, str]

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


def predict_step(asked: Point, known: Sequence[Measured]) -> Step | Refusal:
    """What a step of this point takes, by what was measured of others."""
    values: dict[str, float] = {}
    laws: dict[str, str] = {}
    for name in LAWS if asked.ranks > 1 else ("compute", "input"):
        of_ranks = name in ("bytes", "sync")
        shown = [one for one in known if one.point.ranks > 1] if of_ranks else known
        found = predict_part(name, asked, shown, values.get("bytes", 0.0))
        if isinstance(found, Refusal):
            return found
        values[name], laws[name] = found
    values.pop("bytes", None)
    return Step(values, {name: laws[name] for name in values})


def predict_part(
    name: str, asked: Point, known: Sequence[Measured], sync_bytes: float = 0.0
) -> tuple[float, str] | Refusal:
    """The part's cost and its law, the likeliest of those that the measured points determine there.

    `sync_bytes`: of the asked point's step, for each rank.
    """
    family = "sync" if name == "bytes" else name
    related = [one for one in known if getattr(one.point, family) == getattr(asked, family)]
    refused = find_refusal(name, asked, [one.point for one in related])
    if refused:
        return refused
    costs = [one.costs[name] for one in related]
    # An error is set against the whole step, so that a part that hardly counts does not.
    scales = [one.step_s for one in related]
    if name == "bytes":
        scales = [max(sent, 1.0) for sent in costs]
    found: list[tuple[float, float, str]] = []
    for law, names in LAWS[name].items():
        terms = [TERMS[each] for each in names]
        features = [[term(one.point, one.costs["bytes"]) for term in terms] for one in related]
        wanted = [term(asked, sync_bytes) for term in terms]
        fitted = fit_terms(features, costs, scales, wanted)
        if fitted:
            found.append((*fitted, law))
    if not found:
        return Refusal(
            asked.label, f"the runs do not separate what its {name} depends on: too few differ"
        )
    _, value, law = min(found, key=lambda each: each[0])
    return value, law


def fit_terms(
    features: Sequence[Sequence[float]],
    costs: Sequence[float],
    scales: Sequence[float],
    wanted: Sequence[float],
) -> tuple[float, float] | None:
    """The AIC of the fit with the least sum of squares of (error / scale), and its value at the
    features `wanted`; None if other coefficients that fit as well would say something else there.

    Of two laws the one with the lower AIC is likelier to hold for points that were not measured
    (Akaike 1974); here no error counts for less than `NOISE`.
    """
    weights, matrix = 1 / np.asarray(scales, float), np.asarray(features, float)
    scaled, target = matrix * weights[:, None], np.asarray(costs, float) * weights
    coefficients = fit_non_negative(scaled, target[None])[0]
    error = float(np.mean((scaled @ coefficients - target) ** 2))
    _, sizes, directions = np.linalg.svd(matrix, full_matrices=False)
    span = directions[sizes > ROUNDING * sizes.max(initial=1.0)]
    asked = np.asarray(wanted, float)
    outside = np.linalg.norm(asked - span.T @ (span @ asked))
    if outside > ROUNDING * max(float(np.linalg.norm(asked)), 1.0):
        return None
    aic = len(target) * log(max(error, NOISE**2)) + 2 * len(span)
    return aic, float(coefficients @ asked)


def find_refusal(name: str, asked: Point, known: Sequence[Point]) -> Refusal | None:
    """Why this part of the asked point's step cannot be predicted from the known ones, if so."""
    if not known:
        return Refusal(asked.label, _unknown_settings(name, asked))
    for axis in AXES[name]:
        value = getattr(asked, axis.attribute)
        values = sorted({getattr(one, axis.attribute) for one in known})
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


def _unknown_settings(name: str, asked: Point) -> str:
    settings = {key: text.strip("'") for key, text in (*asked.compute, *asked.input)}
    if name in ("sync", "bytes"):
        what = f"several ranks with engine {settings.get('engine', '?')}"
        return f"no run of {what} and these settings shows what they exchange"
    names = ("loader", "num_workers") if name == "input" else ("engine", "optimizer")
    known = [f"{each} {settings[each]}" for each in names if each in settings]
    return f"no run shows the {name} of {', '.join(known)} with otherwise these settings"


def _settings_for(axis: Axis, asked: Point) -> tuple[str, ...]:
    """The settings of the job file that make this number."""
    if axis is SHARE and asked.batch_per_rank is None:
        return (f"training.global_batch_size={asked.batch}",)
    if axis is SHARE:
        return (f"training.batch_size_per_rank={asked.batch_per_rank}",)
    if axis is THREADS:
        cores = asked.cores / asked.ranks
        key = "resources.cpus_per_task" if cores == asked.threads else "training.threads"
        return (f"{key}={asked.threads}",)
    nodes = asked.ranks // asked.ranks_per_node
    several = (f"resources.nodes={nodes}",) if nodes > 1 else ()
    return (*several, f"resources.tasks_per_node={asked.ranks_per_node}")


# The interval is jackknife+ (Barber, Candès, Ramdas and Tibshirani 2021) on the logarithm: each
# configuration in turn is left out, the rest predict both it and what is asked, and its error is
# put upon that. A tenth of such bounds may lie outside at either end; of fewer than 19, none does.


@dataclass(frozen=True)
class HeldOut:
    """One configuration, predicted from all others."""

    one: Measured
    step_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.step_s / self.one.step_s - 1


def predict_held_out(known: Sequence[Measured]) -> tuple[list[HeldOut], list[Refusal]]:
    """Every configuration without itself: those predicted, and those refused."""
    predicted: list[HeldOut] = []
    refused: list[Refusal] = []
    for one in known:
        found = predict_step(one.point, _without(known, one))
        if isinstance(found, Refusal):
            refused.append(found)
        else:
            predicted.append(HeldOut(one, found.seconds))
    return predicted, refused


def _without(known: Sequence[Measured], one: Measured) -> list[Measured]:
    return [other for other in known if other is not one]


def interval(
    asked: Point, known: Sequence[Measured], errors: Sequence[HeldOut]
) -> tuple[float, float] | None:
    """Seconds of a step; None if fewer than three configurations could be held out."""
    if len(errors) < FEWEST:
        return None
    lows, highs = list[float](), list[float]()
    for each in errors:
        found = predict_step(asked, _without(known, each.one))
        if isinstance(found, Refusal):
            found = predict_step(asked, known)
        assert isinstance(found, Step)
        error = abs(log(each.step_s / each.one.step_s))
        lows.append(log(found.seconds) - error)
        highs.append(log(found.seconds) + error)
    outside = max((len(lows) + 1) // ONE_IN - 1, 0)  # so many bounds at either end are left out
    return exp(sorted(lows)[outside]), exp(sorted(highs, reverse=True)[outside])


def predict(runs: Sequence[Row], asked: Sequence[Row]) -> list[Prediction | Refusal]:
    """`runs`: the table of runs; `asked`: settings of planned runs, as `collect.settings` has them,
    with `data_key`. Answers in the order asked; equal ones once."""
    known = measured_points(completed_runs(runs))
    errors, _ = predict_held_out(known)
    measured = {one.point.key: one for one in known}
    return [
        figures_of_run(measured[point.key], known)
        if point.key in measured
        else predict_point(point, known, errors)
        for point in asked_points(runs, asked)
    ]


def asked_points(runs: Sequence[Row], asked: Sequence[Row]) -> list[Point]:
    """The points of planned runs, each once, labelled against the runs that were made."""
    trained = [row for row in completed_runs(runs) if row["workload"] == "ncf"]
    varying = varying_settings([*asked, *trained])
    points = [point_from_row(row, varying) for row in asked]
    return list({point.key: point for point in points}.values())


def predict_point(
    point: Point, known: Sequence[Measured], errors: Sequence[HeldOut]
) -> Prediction | Refusal:
    if not known:
        return Refusal(point.label, "no completed run of these results has a speed")
    step = predict_step(point, known)
    if isinstance(step, Refusal):
        return step
    ends = interval(point, known, errors)
    # Instances of an epoch, and what it takes beside its steps, from runs on the same data.
    same = [one for one in known if one.point.compute == point.compute]
    instances = median(one.instances_per_epoch for one in same)
    steps = point.steps(instances) * median(one.epoch_factor for one in same)
    speed = point.batch * (1 + point.negatives) / step.seconds
    return Prediction(
        label=point.label,
        seconds_per_epoch=step.seconds * steps,
        low=ends[0] * steps if ends else None,
        high=ends[1] * steps if ends else None,
        instances_per_s=speed,
        core_s_per_epoch=step.seconds * steps * point.cores,
        **_efficiency(point, speed, known),
        phases=step.phases,
        basis="; ".join(f"{name}: {law}" for name, law in step.laws.items()),
    )


def figures_of_run(one: Measured, known: Sequence[Measured]) -> Prediction:
    return Prediction(
        label=one.point.label,
        seconds_per_epoch=one.seconds_per_epoch,
        low=one.low if one.runs > 1 else None,
        high=one.high if one.runs > 1 else None,
        instances_per_s=one.instances_per_s,
        core_s_per_epoch=one.seconds_per_epoch * one.point.cores,
        **_efficiency(one.point, one.instances_per_s, known),
        phases=one.phases,
        runs=one.runs,
    )


def _efficiency(point: Point, speed: float, known: Sequence[Measured]) -> dict[str, Any]:
    """`efficiency` and `base`: the smallest run with the same settings, of the same batch where
    there is one."""
    settings = (point.compute, point.input)
    base = min(
        (one for one in known if (one.point.compute, one.point.input) == settings),
        key=lambda one: (one.point.batch != point.batch, one.point.cores, one.point.label),
        default=None,
    )
    if base is None:
        return {"efficiency": None, "base": None}
    gain, cores = speed / base.instances_per_s, point.cores / base.point.cores
    return {"efficiency": gain / cores, "base": base.point.label}


def describe(one: Prediction | Refusal, command: str) -> str:
    """An answer in words. `command` submits its configuration; settings may be added to it."""
    if isinstance(one, Refusal):
        more = [f"-s {each}" for each in one.run if each not in command.split()]
        run = " ".join([command, *more])
        return f"{one.label}\n  no prediction: {one.reason}\n  to know, run it: {run}"
    ends = format_interval(one.low, one.high, format_number)
    if one.runs:
        figure = "it was run"
        ends = f"{ends} over {one.runs} runs" if ends else "(one run: no interval)"
    else:
        figure = "predicted"
        ends = ends or f"(no interval: fewer than {FEWEST} configurations to hold out)"
    efficiency = "no efficiency: nothing of its settings was run"
    if one.base == one.label:
        efficiency = "the base: nothing of its settings has fewer cores"
    elif one.base:
        efficiency = f"parallel efficiency {format_percent(one.efficiency)} against {one.base}"
    parts = ", ".join(f"{name} {_milliseconds(part)}" for name, part in one.phases.items())
    speed = f"{format_number(one.instances_per_s)} instances/s"
    cost = f"{format_number(one.core_s_per_epoch)} core-s/epoch"
    return "\n".join(
        [
            one.label,
            f"  {figure}: {format_number(one.seconds_per_epoch)} s/epoch {ends}, {speed}, {cost}",
            f"  {efficiency}",
            f"  a step: {parts}",
            *([f"  fitted: {one.basis}"] if one.basis else []),
        ]
    )


def _milliseconds(seconds: float) -> str:
    return f"{format_number(1000 * seconds)} ms"


def describe_errors(predicted: Sequence[HeldOut], refused: Sequence[Refusal]) -> str:
    """Each configuration predicted from all others: how wrong."""
    lines = [
        f"{each.error:+6.0%}  {_milliseconds(each.step_s)} a step predicted, "
        f"{_milliseconds(each.one.step_s)} measured: {each.one.point.label}"
        for each in predicted
    ]
    if predicted:
        errors = [abs(each.error) for each in predicted]
        lines.append(
            f"half of the {len(errors)} held out are predicted within "
            f"{format_percent(median(errors))}, the worst within {format_percent(max(errors))}"
        )
    lines += [f"refused  {one.label}: {one.reason}" for one in refused]
    return "\n".join(lines) or "no completed run has a speed"
