"""Expand a job's grid and points into the runs of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any, Final

from hpcncf.errors import UsageError, abbreviate, did_you_mean
from hpcncf.job.identity import (
    add_remedies,
    command_identity,
    configuration_id,
    run_identity,
)
from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import (
    PAPER_DATASETS,
    PAPER_STD,
    GridPoint,
    JobSpec,
    Program,
    apply_point,
    find_placeholder_problem,
    placeholder_values,
    validate_settings,
)
from hpcncf.job.validate import find_conflicts
from hpcncf.paths import hash_identity

# Every verb reads the whole plan.
MAX_RUNS: Final = 100_000


def expand_job(
    job: JobSpec,
    data_keys: Mapping[str, str | None] | None = None,
    datasets: Mapping[str, str | None] | None = None,
) -> Plan:
    """Expand a job's grid and points into the plan of its runs.

    `data_keys` maps data paths to the keys of their content, `datasets` to their formats, which
    resolve `model.init: auto`.

    Raises UsageError naming the point whose settings exclude each other.
    """
    combinations = grid_points(job)
    if not combinations:
        raise UsageError(
            "exclude: leaves no run: every combination of the grid is excluded. Exclude fewer"
        )
    varied = sorted({key for point in combinations for key in point})
    runs: dict[str, Run] = {}
    prepared = data_keys or {}, datasets or {}
    for point in combinations:
        for repeat in range(job.repeats):
            run = _build_run(job, point, repeat, varied, *prepared)
            first = runs.setdefault(run.id, run)
            if first.resources != run.resources:
                raise UsageError(
                    f"grid: {first.varied} and {run.varied} compute the same, since memory and "
                    "time limit are not part of a run's identity. Vary another setting with them"
                )
    if job.baseline is not None:
        base = _build_run(job, job.baseline, 0, varied, *prepared)
        wanted = configuration_id(base)
        runs = {
            run.id: run.model_copy(update={"baseline": configuration_id(run) == wanted})
            for run in runs.values()
        }
        if not any(run.baseline for run in runs.values()):
            raise UsageError(
                f"baseline: {_spell(base.varied)} is no point of grid or points. Add it there."
            )
    return Plan(job=job.name, runs=sorted(runs.values(), key=lambda run: (run.repeat, run.id)))


def grid_points(job: JobSpec) -> list[dict[str, Any]]:
    """List each combination of dotted settings that the job requests, without repeats.

    Raises UsageError if they are more than MAX_RUNS.
    """
    count = job.repeats * (prod(map(len, job.grid.values())) + len(job.points))
    if count > MAX_RUNS:
        raise UsageError(
            f"grid and repeats: request {count:,} runs, more than {MAX_RUNS:,}. Vary fewer "
            "settings at a time, or split the job into several"
        )
    grid = [dict(zip(job.grid, values, strict=True)) for values in product(*job.grid.values())]
    if not job.grid and job.points:
        grid = []  # without a grid the points are all; without both, the base is the one run
    kept = [
        point
        for point in grid
        if not any(
            all(key in point and point[key] == value for key, value in combination.items())
            for combination in job.exclude
        )
    ]
    return kept + [dict(point) for point in job.points]


def unused_excludes(job: JobSpec) -> list[str]:
    """Warn about values in `exclude` that the grid does not have.

    They are no error, since `-s` narrows grids.
    """

    def axis(key: str) -> str:
        if key not in job.grid:
            return f"no {key}.{did_you_mean(key, list(job.grid))}"
        return ", ".join(map(_spell, job.grid[key]))

    return [
        f"exclude: {key}={_spell(value)} matches nothing; the grid has {axis(key)}"
        for combination in job.exclude
        for key, value in combination.items()
        if value not in job.grid.get(key, [])
    ]


def repeated_values(job: JobSpec) -> list[str]:
    """Warn about values of the grid, and points, that are listed more than once."""
    listed = {f"grid.{key}": values for key, values in job.grid.items()} | {"points": job.points}
    return [
        f"{key}: {value} is listed {number} times and counts once; for repeats set `repeats`"
        for key, values in listed.items()
        for value, number in Counter(map(_spell, values)).items()
        if number > 1
    ]


def _build_run(
    job: JobSpec,
    changes: Mapping[str, Any],
    repeat: int,
    varied: list[str],
    data_keys: Mapping[str, str | None],
    datasets: Mapping[str, str | None],
) -> Run:
    plain = apply_point(job, changes)
    where = "".join(f" {key}={_spell(value)}" for key, value in changes.items()) or " the base"
    where = f"grid point{where}"
    point = validate_settings(GridPoint, plain, where)
    resources, data, model, training = point.resources, point.data, point.model, point.training
    program = job.workload if isinstance(job.workload, Program) else None
    reasons = find_conflicts(resources, None if program else training, model)
    if program:
        known = placeholder_values(point.parameters, resources.model_dump(mode="json"), repeat)
        problem = find_placeholder_problem(program, point.parameters, known)
        reasons = [problem] if problem else reasons
    if reasons:
        raise UsageError(f"{where}: " + "; ".join(reasons))
    key = None
    if program:
        identity = command_identity(program, point.parameters, resources, repeat)
        identity = add_remedies(identity, point.remedies)
    else:
        assert data is not None
        found = data.dataset or datasets.get(data.path)
        data = data.model_copy(update={"dataset": found})
        # `init: auto` is the paper's for data in its formats, else `torch`. That is left as it is:
        # plans of 0.1.0 have no such setting.
        if (model.init, model.embedding_std) == ("auto", PAPER_STD) and found in PAPER_DATASETS:
            model = model.model_copy(update={"init": "paper"})
        key = data_keys.get(data.path)
        identity = run_identity(job.workload, resources, key or data.path, model, training, repeat)
    return Run(
        id=hash_identity(identity),
        repeat=repeat,
        varied={name: plain[name.split(".")[0]].get(name.split(".")[1]) for name in varied},
        workload=job.workload,
        parameters=point.parameters,
        remedies=point.remedies,
        resources=resources,
        data=data,
        data_key=key,
        model=None if program else model,
        training=None if program else training,
    )


def _spell(value: Any) -> str:
    return value if isinstance(value, str) and len(value) < 100 else abbreviate(value)
