"""Expand a job's grid into a plan: runs, each with an id that follows from what it computes."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, model_validator

from hpcncf.errors import UsageError, abbreviate, did_you_mean
from hpcncf.job.spec import (
    PAPER_DATASETS,
    PAPER_STD,
    Data,
    GridPoint,
    JobSpec,
    Model,
    Parameters,
    Program,
    Remedies,
    Resources,
    Settings,
    Training,
    Workload,
    apply_point,
    build_command,
    find_placeholder_problem,
    placeholder_values,
    validate_settings,
)
from hpcncf.job.validate import find_conflicts
from hpcncf.native.builds import NotBuilt, load_library

SCHEMA_VERSION: Final = 1
# Every verb reads the whole plan.
MAX_RUNS: Final = 100_000
ENGINE: Final = "training.engine"
SEED: Final = "seed"
"""Setting of `training`, or a command's parameter."""

Pack = list["Run"]
T = TypeVar("T")


def _check_id(run_id: str) -> str:
    """Others may write to the folder that holds the plan: an id must not lead out of it."""
    if not re.fullmatch(r"[0-9A-Za-z_-]{1,64}", run_id):
        raise ValueError(f"expected a run id, came {abbreviate(run_id)}")
    return run_id


class Run(Settings):
    """One grid point, one repeat: all that a rank needs to compute it."""

    id: Annotated[str, AfterValidator(_check_id)]
    """The first 12 hexadecimal digits of the SHA-256 of the run's identity."""
    repeat: int
    """0 is the first."""
    varied: dict[str, Any]
    """The settings that this job's grid and points vary, and their values here."""
    workload: Workload
    """`ncf`, or `{"command": [...]}`: with placeholders, unless `by_hand`."""
    by_hand: bool = False
    """Started by `hpcncf run`: its resources were not requested from Slurm, and it is never
    resubmitted."""
    parameters: Parameters = {}  # noqa: RUF012
    """Values of the placeholders of a job file's command."""
    remedies: Remedies = Remedies()
    """Changes that the probe makes to a command."""
    resources: Resources
    data: Data | None
    """`path` is absolute here. None for a command."""
    data_key: str | None
    """The key of the prepared folder's content; None if the data was not prepared yet."""
    model: Model | None
    training: Training | None
    baseline: bool = False
    """Belongs to the point that the others are compared with."""
    retired: bool = False
    """No longer in the job file; kept with its results."""

    @model_validator(mode="after")
    def once_every_command_was_by_hand(self) -> Self:
        """Plans from before job files could hold commands lack `by_hand`."""
        if self.workload != "ncf" and "by_hand" not in self.model_fields_set:
            return self.model_copy(update={"by_hand": True})
        return self

    @property
    def words(self) -> list[str]:
        """The command, except for values known only at run time; empty for ncf."""
        if not isinstance(self.workload, Program):
            return []
        if self.by_hand:
            return list(self.workload.command or [])
        resources = self.resources.model_dump(mode="json")
        return build_command(
            self.workload, placeholder_values(self.parameters, resources, self.repeat)
        )


class Plan(Settings):
    """All runs that a job file requests. The same input always gives the same plan."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["plan"] = "plan"
    job: str
    """The job's name."""
    runs: list[Run]
    """In submission order: rounds of repeats, random within a round."""

    def active(self) -> list[Run]:
        return [run for run in self.runs if not run.retired]

    def run(self, run_id: str) -> Run:
        """The run whose id starts with `run_id`. Raises UsageError if none or several do."""
        found = [run for run in self.runs if run.id.startswith(run_id)]
        if len(found) == 1:
            return found[0]
        known = found or self.runs
        ids = ", ".join(run.id for run in known[:10])
        more = f" and {len(known) - 10} more" if len(known) > 10 else ""
        problem = "matches several runs" if found else "is not in the plan, which has"
        raise UsageError(f"run {run_id!r}: {problem}: {ids}{more}")


def expand_job(
    job: JobSpec,
    data_keys: Mapping[str, str | None] | None = None,
    datasets: Mapping[str, str | None] | None = None,
) -> Plan:
    """The plan of a job; `data_keys` maps a data path to the key of its content, `datasets` to its
    format, which resolves `model.init: auto`.

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
    """Each combination of dotted settings that the job requests, before repeats.

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
    """Values in `exclude` that the grid does not have. No error, since `-s` narrows grids."""

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
    """Values that the grid, and points that the job, lists more than once: they count once."""
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
        identity = _with_remedies(identity, point.remedies)
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
        by_hand=False,
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


def run_identity(
    workload: Any,
    resources: Resources,
    data_key: str | None,
    model: Model | None,
    training: Training | None,
    repeat: int,
) -> dict[str, Any]:
    """Settings that decide a run's result, as plain data.

    Memory, time limit, paths and site are no part of it. Settings at their defaults are left out,
    so that a later version with more settings still recognises the run.
    """
    plain = model.model_dump(mode="json", exclude_defaults=True) if model else None
    if model and plain is not None:
        plain.pop("init", None)  # `paper` and its number are one; `auto` is `torch` if not resolved
        plain |= {} if model.table_std is None else {"init": model.table_std}
    return {
        "workload": workload,
        "data": data_key,
        "resources": _resource_identity(resources),
        "model": plain,
        "training": _training_identity(training, resources) if training else None,
        "repeat": repeat,
    }


def command_identity(
    program: Program, parameters: Mapping[str, Any], resources: Resources, repeat: int
) -> dict[str, Any]:
    """A command's words with all values in them except memory and time limit."""
    unfilled = {name: f"{{resources.{name}}}" for name in Resources.model_fields}
    known = placeholder_values(parameters, unfilled | _resource_identity(resources), repeat)
    words = build_command(program, known)
    workload = {"command": words} | ({"trial": True} if program.trial else {})
    return run_identity(workload, resources, None, None, None, repeat)


def _with_remedies(identity: dict[str, Any], remedies: Remedies) -> dict[str, Any]:
    """Without any, as it was before there were remedies."""
    if not remedies:
        return identity
    return identity | {"remedies": remedies.model_dump(mode="json", exclude_defaults=True)}


def _resource_identity(resources: Resources) -> dict[str, Any]:
    names = {"nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node"}
    # Runs that share a node or a GPU are slower: to measure that, they must be runs of their own.
    for name in ("launcher", "runs_per_node", "runs_per_gpu", "ranks_per_gpu", "mps"):
        if getattr(resources, name) != Resources.model_fields[name].default:
            names.add(name)
    return resources.model_dump(mode="json", include=names)


def _training_identity(training: Training, resources: Resources) -> dict[str, Any]:
    """Resolves `auto` and the two batch sizes, so that one computation has one identity."""
    plain = training.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={
            "device",
            "backend",
            "global_batch_size",
            "batch_size_per_rank",
            "epochs",
            "checkpoint_every_min",
            "log_every",
        },
    )
    return plain | {
        "epochs": training.epochs,
        "device": training.device_for(resources),
        "backend": training.backend_for(resources),
        "batch": training.batch_over_ranks(resources.world_size),
    }


def hash_identity(identity: Mapping[str, Any]) -> str:
    """The first 12 hexadecimal digits of the identity's SHA-256."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def configuration_id(run: Run) -> str:
    """Identifies a point, whose repeats all have this id. Runs that differ in their seed alone are
    repeats, too."""
    if isinstance(run.workload, Program) and not run.by_hand:
        parameters = run.parameters | ({SEED: 0} if SEED in run.parameters else {})
        identity = command_identity(run.workload, parameters, run.resources, 0)
        return hash_identity(_with_remedies(identity, run.remedies))
    workload: Any = run.workload
    if run.by_hand:
        name, workload = run.varied.get("run.command"), {"command": run.words}
        if name not in (None, shlex.join(run.words)):  # two names are two things to compare
            workload["name"] = name
    training = run.training and run.training.model_copy(
        update={SEED: Training.model_fields[SEED].default}
    )
    identity = run_identity(workload, run.resources, run.data_key, run.model, training, 0)
    return hash_identity(_with_remedies(identity, run.remedies))


def max_core_hours(runs: list[Run]) -> float:
    """Core hours if every run takes its whole time limit; an incomplete pack costs a full one."""
    minutes = (
        -(-number // asked.side_by_side) * asked.nodes * asked.node_cores * asked.timeout_min
        for asked, number in Counter(run.resources for run in runs).items()
    )
    return sum(minutes) / 60


def merge_plans(old: Plan, new: Plan) -> Plan:
    """The new plan, with the old one's other runs kept and marked retired."""
    present = {run.id for run in new.runs}
    gone = [run.model_copy(update={"retired": True}) for run in old.runs if run.id not in present]
    return new.model_copy(update={"runs": new.runs + gone})


def pack_runs(runs: Sequence[Run]) -> list[Pack]:
    """Packs of runs that run side by side, every run once, in the order of their first runs."""
    at = {run.id: number for number, run in enumerate(runs)}
    packs = [pack for alike in packs_by_resources(runs) for pack in alike]
    return sorted(packs, key=lambda pack: at[pack[0].id])


def packs_by_resources(runs: Sequence[Run]) -> list[list[Pack]]:
    """The packs of runs with equal resources; only the last pack of each list may be incomplete.

    Repeats of one configuration share a pack if they fill it, so that a pack's speed belongs to
    one configuration. Packs of the remaining runs are mixed.
    """
    alike: dict[Resources, list[Run]] = defaultdict(list)
    for run in runs:
        alike[run.resources].append(run)
    return [_packs_of_equals(each) for each in alike.values()]


def _packs_of_equals(runs: Sequence[Run]) -> list[Pack]:
    size = runs[0].resources.side_by_side
    if size == 1:
        return [[run] for run in runs]
    repeats: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        repeats[configuration_id(run)].append(run)
    full = [pack for each in repeats.values() for pack in batched(each, size) if len(pack) == size]
    at = {run.id: number for number, run in enumerate(runs)}
    packed = {run.id for pack in full for run in pack}
    remaining = [run for run in runs if run.id not in packed]
    return sorted(full, key=lambda pack: at[pack[0].id]) + batched(remaining, size)


def batched(items: Sequence[T], size: int) -> list[list[T]]:
    return [list(items[at : at + size]) for at in range(0, len(items), size)]


def missing_native_engine(job: JobSpec) -> str | None:
    """Why engine native, which the job requests, is not available; None if there is no problem."""
    engines = [
        job.training.engine,
        *job.grid.get(ENGINE, []),
        *(point.get(ENGINE) for point in job.points),
    ]
    if job.workload != "ncf" or "native" not in engines:
        return None
    try:
        load_library()
    except NotBuilt as missing:
        return missing.reason
    return None


def describe_engine_fallback(reason: str) -> str:
    return (
        f"{reason}: falling back to engine rowwise (same results, slower); the runs are recorded "
        "as rowwise. Install g++ and reinstall hpcncf to get the native engine"
    )


def with_engine_fallback(job: JobSpec, reason: str | None) -> JobSpec:
    """The job with engine rowwise in place of native if there is a `reason`, else as it is.

    A run's id, its record and the tables then name the engine that really trains it. Once the
    native engine is available, the job file gives other runs.
    """
    if reason is None:
        return job

    def available(engine: Any) -> Any:
        return "rowwise" if engine == "native" else engine

    # Expanded to points, since `exclude` may name the engine that the job file has.
    points = [
        point | {ENGINE: available(point[ENGINE])} if ENGINE in point else point
        for point in grid_points(job)
    ]
    expanded = {"grid": {}, "exclude": [], "points": points} if points != [{}] else {}
    training = job.training.model_copy(update={"engine": available(job.training.engine)})
    return job.model_copy(update={"training": training, **expanded})
