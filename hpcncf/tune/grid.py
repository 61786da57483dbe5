"""A job's grid as the points to choose from, and each ask as a run of the plan. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from hpcncf import plan as planning
from hpcncf.errors import UsageError
from hpcncf.plan import Plan, Run
from hpcncf.spec import JobSpec
from hpcncf.tune.values import Ask, Point

# What a run that is cut short does not need. Like its length, that makes it another run than the
# whole one, with a folder of its own.
CUT: Final = {"training.evaluation": "none", "training.checkpoint_every": 0}
# These change how fast a model is trained, not which one.
SPEED_ONLY: Final = {
    *("device", "backend", "threads", "engine", "loader", "num_workers", "adam", "sparse"),
    *("parallel", "bucket_mb", "gradient_as_bucket_view", "static_graph", "compile", "cuda_graph"),
    *("accumulate", "global_batch_size", "batch_size_per_rank", "checkpoint_every"),
    *("checkpoint_every_min", "interop_threads", "omp_wait_policy", "pin", "cudnn_benchmark"),
    *("workers", "persistent_workers", "prefetch_factor", "collate", "pin_memory"),
    *("non_blocking", "prefetch_to_device", "profile", "profile_steps", "profile_ranks"),
}


@dataclass(frozen=True)
class Grid:
    job: JobSpec
    keys: Mapping[str, str | None]
    """Data path -> what the prepared folder calls its content."""
    settings: tuple[dict[str, Any], ...]
    """Of each point, dotted."""
    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()
    """Points that cannot run here, with the reason."""

    def run(self, ask: Ask) -> Run:
        """As the job file has it, but for its length and what a cut run does not need."""
        cut = {} if ask.steps is None else {**CUT, "training.max_steps": ask.steps}
        return _run(self.job, self.settings[ask.point] | cut, ask.repeat, self.keys)

    def plan(self, asks: Sequence[Ask]) -> Plan:
        runs = {run.id: run for run in map(self.run, asks)}
        return Plan(job=self.job.name, runs=list(runs.values()))

    def without(self, reasons: Mapping[int, str]) -> Grid:
        """The same, some points left out for a reason each."""
        kept = tuple(point for point in self.points if point.index not in reasons)
        gone = [point for point in self.points if point.index in reasons]
        told = tuple(f"{point.label}: {reasons[point.index]}" for point in gone)
        return replace(self, points=kept, left_out=self.left_out + told)

    def priced(self, gpu_hour: float) -> Grid:
        """The same, an hour of a GPU counting for so many core-hours.

        Raises UsageError where some points have GPUs, others none, and it counts for none: the
        two have no common price.
        """
        on_gpus = [point for point in self.points if point.gpus]
        if on_gpus and len(on_gpus) < len(self.points) and not gpu_hour:
            without = next(point for point in self.points if not point.gpus)
            raise UsageError(
                f"grid: {on_gpus[0].label} has GPUs and {without.label} has none: expected "
                "--gpu-hour CORE_HOURS, what an hour of a GPU counts for in the budget and in "
                "cost (what your site bills: TRESBillingWeights of `scontrol show partition`); "
                "or tune the two apart, with -s"
            )
        points = tuple(replace(point, gpu_hour=gpu_hour) for point in self.points)
        return replace(self, points=points)


def _run(
    job: JobSpec, settings: Mapping[str, Any], repeat: int, keys: Mapping[str, str | None]
) -> Run:
    alone = {"grid": {}, "points": [dict(settings)], "exclude": [], "repeats": repeat + 1}
    runs = planning.expand(job.model_copy(update=alone), keys).runs
    return next(run for run in runs if run.repeat == repeat)


def of(job: JobSpec, keys: Mapping[str, str | None], rows: Mapping[str, int]) -> Grid:
    """`rows`: data path -> training positives. Raises UsageError where there is nothing to choose
    from, or where runs cannot be made shorter."""
    if job.workload != "ncf":
        raise UsageError(
            "tune makes runs shorter by training.max_steps, which a command has not: "
            "give its points to `hpcncf submit` instead"
        )
    runs: dict[str, tuple[dict[str, Any], Run]] = {}
    for settings in planning.points_plan(job):
        run = _run(job, settings, 0, keys)
        runs.setdefault(run.id, (settings, run))
    if len(runs) < 2:
        raise UsageError("grid: tune chooses among points, and this job has one: add a grid")
    points = tuple(
        _point(index, settings, run, rows) for index, (settings, run) in enumerate(runs.values())
    )
    return Grid(job, keys, tuple(settings for settings, _ in runs.values()), points)


def _point(index: int, settings: Mapping[str, Any], run: Run, rows: Mapping[str, int]) -> Point:
    assert run.training is not None
    assert run.data is not None
    batch = run.training.batch_over_ranks(run.resources.world_size)
    whole = run.training.epochs * ceil(rows[run.data.path] / batch)
    values = [f"{key.split('.')[1]}={value}" for key, value in settings.items()]
    return Point(
        index=index,
        label=" ".join(values),
        cores=run.resources.cores,
        gpus=run.resources.nodes * run.resources.gpus_per_node / run.resources.runs_per_gpu,
        batch=batch,
        whole_steps=min(whole, run.training.max_steps or whole),
        quality=quality(run, batch),
        values=frozenset(values),
    )


def quality(run: Run, batch: int) -> str:
    """Equal for runs that train the same model on the same instances in the same order."""
    assert run.training is not None
    assert run.model is not None
    training = run.training.model_dump(mode="json", exclude=SPEED_ONLY)
    apart = run.training.sync == "local_sgd" and run.resources.world_size > 1
    if not apart:
        training = {key: each for key, each in training.items() if not key.startswith("sync")}
    ranks = run.resources.world_size if apart else 1
    told = [run.data_key, run.model.model_dump(mode="json"), training, batch, ranks]
    return json.dumps(told, sort_keys=True)
