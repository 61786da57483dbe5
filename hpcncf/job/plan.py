"""Expand a job file into runs with ids, and pack runs that share a node."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, RootModel, ValidationError, model_validator

from hpcncf.errors import UsageError, abbreviate, did_you_mean
from hpcncf.job import command as programs
from hpcncf.job.command import Parameters, Program, Workload, build_command, placeholder_values
from hpcncf.job.settings import Settings, error_location
from hpcncf.job.spec import Data, JobSpec, Model, Resources, Training, apply_point
from hpcncf.job.validate import placement_conflicts, training_conflicts, memory_conflicts, model_conflicts
from hpcncf.ncf.engines.native.library import NotBuilt, load_library


def run_identity(
    workload: Any,
    resources: Resources,
    data_key: str | None,
    model: Model | None,
    training: Training | None,
    repeat: int,
) -> dict[str, Any]:
    """What a run computes, as plain data: not its memory, time limit, paths or site.

    A setting left at its default is left out, so that a later version which adds a setting
    still knows the runs made before it.
    """
    return {
        "workload": workload,
        "data": data_key,
        "resources": _describe_resources(resources),
        "model": model.model_dump(mode="json", exclude_defaults=True) if model else None,
        "training": _describe_training(training, resources) if training else None,
        "repeat": repeat,
    }


def _describe_resources(resources: Resources) -> dict[str, Any]:
    asked = {"nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node"}
    # Runs that share a node or a GPU are slower: to measure that, they must be runs of their own.
    for setting in ("launcher", "runs_per_node", "runs_per_gpu", "ranks_per_gpu", "mps"):
        if getattr(resources, setting) != Resources.model_fields[setting].default:
            asked.add(setting)
    return resources.model_dump(mode="json", include=asked)


def command_identity(
    program: Program, parameters: Mapping[str, Any], resources: Resources, repeat: int
) -> dict[str, Any]:
    """The same of a command: its words with all values in them but the memory and the time."""
    open_ = {name: f"{{resources.{name}}}" for name in Resources.model_fields}
    known = open_ | _describe_resources(resources)
    words = build_command(program, placeholder_values(parameters, known, repeat))
    return run_identity({"command": words}, resources, None, None, None, repeat)


def _describe_training(training: Training, resources: Resources) -> dict[str, Any]:
    """Two spellings of one computation are one run: `auto` is resolved, batch sizes are one."""
    plain = training.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={"device", "backend", "global_batch_size", "batch_size_per_rank", "epochs"}
        | {"checkpoint_every_min"},
    )
    return plain | {
        "epochs": training.epochs,
        "device": training.device_for(resources),
        "backend": training.backend_for(resources),
        "batch": training.batch_over_ranks(resources.world_size),
    }


def hash_identity(identity: Mapping[str, Any]) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of what a run computes."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


SCHEMA_VERSION: Final = 1
# Far more than anybody waits for; a plan is read as a whole, by every verb.
MAX_RUNS: Final = 100_000


def _names_a_folder(run_id: str) -> str:
    """A plan comes from a folder that others may write: its ids must not lead out of it."""
    if not re.fullmatch(r"[0-9A-Za-z_-]{1,64}", run_id):
        raise ValueError(f"expected a run's id, came {abbreviate(run_id)}")
    return run_id


class Run(Settings):
    """One grid point, one repeat: all that a rank needs to know to compute it."""

    id: Annotated[str, AfterValidator(_names_a_folder)]
    """The first 12 hexadecimal digits of the SHA-256 of `identity`."""
    repeat: int
    """0 is the first."""
    varied: dict[str, Any]
    """The settings that this job's grid and points vary, and their values here."""
    workload: Workload
    """`ncf`, or `{"command": [...]}`: with placeholders, unless `by_hand`."""
    by_hand: bool = False
    """Started by `hpcncf run`: nobody asked Slurm for its resources, and nothing sends it again."""
    parameters: Parameters = {}  # noqa: RUF012
    """Of a command from a job file: what its placeholders stand for."""
    resources: Resources
    data: Data | None
    """`path` is absolute here. None for a command."""
    data_key: str | None
    """What the prepared folder calls its content; None where it was not prepared yet."""
    model: Model | None
    training: Training | None
    baseline: bool = False
    """Of the point that the others are compared with."""
    retired: bool = False
    """No longer in the job file; kept with its results."""

    @model_validator(mode="before")
    @classmethod
    def once_every_command_was_by_hand(cls, plain: Any) -> Any:
        """Plans of before commands could stand in a job file do not say."""
        if isinstance(plain, dict) and "by_hand" not in plain and plain.get("workload") != "ncf":
            return {**plain, "by_hand": True}
        return plain

    @property
    def words(self) -> list[str]:
        """How a command is called, but for what is known only when it runs; none for ncf."""
        if not isinstance(self.workload, Program):
            return []
        if self.by_hand:
            return list(self.workload.command or [])
        known = self.resources.model_dump(mode="json")
        values = programs.placeholder_values(self.parameters, known, self.repeat)
        return programs.build_command(self.workload, values)


class Plan(Settings):
    """Everything that a job file asks for. The same input gives the same plan, always."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["plan"] = "plan"
    job: str
    """The job's name."""
    runs: list[Run]
    """In the order in which they should run: rounds of repeats, random within a round."""

    def active(self) -> list[Run]:
        return [run for run in self.runs if not run.retired]

    def run(self, run_id: str) -> Run:
        """The run whose id starts with `run_id`. Raises UsageError when none or several do."""
        found = [run for run in self.runs if run.id.startswith(run_id)]
        if len(found) == 1:
            return found[0]
        known = found or self.runs
        ids = ", ".join(run.id for run in known[:10])
        more = f" and {len(known) - 10} more" if len(known) > 10 else ""
        wrong = "several begin so" if found else "not in the plan, whose runs are"
        raise UsageError(f"run {run_id!r}: {wrong}: {ids}{more}")


def configuration_id(run: Run) -> str:
    """Names what repeats of one point have in common, as a run's id does for the run."""
    if isinstance(run.workload, Program) and not run.by_hand:
        first = command_identity(run.workload, run.parameters, run.resources, 0)
    else:
        plain = _by_hand(run) if run.by_hand else run.workload
        first = run_identity(plain, run.resources, run.data_key, run.model, run.training, 0)
    return hash_identity(first)


def _by_hand(run: Run) -> dict[str, Any]:
    """Its words, and the name that the user gave it: two names are two things to compare."""
    name, words = run.varied.get("run.command"), {"command": run.words}
    return words if name in (None, shlex.join(run.words)) else {**words, "name": name}


def grid_points(job: JobSpec) -> list[dict[str, Any]]:
    """Each combination of dotted settings that the job asks for, before repeats.

    Raises UsageError where they are too many to be meant.
    """
    asked = job.repeats * (prod(map(len, job.grid.values())) + len(job.points))
    if asked > MAX_RUNS:
        raise UsageError(
            f"grid and repeats: ask for {asked:,} runs, more than {MAX_RUNS:,}: "
            "vary less at a time, or split the question into several jobs"
        )
    grid = [dict(zip(job.grid, values, strict=True)) for values in product(*job.grid.values())]
    if not job.grid and job.points:
        grid = []  # `points` alone is the whole question; without both, the base is the one run
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
    """What `exclude` names and the grid has nowhere. It is no error: `-s` narrows grids."""
    return [
        f"exclude: {key}={_format_value(value)} matches nothing; the grid has {_there(job, key)}"
        for combination in job.exclude
        for key, value in combination.items()
        if value not in job.grid.get(key, [])
    ]


def _there(job: JobSpec, key: str) -> str:
    if key not in job.grid:
        return f"no {key}.{did_you_mean(key, list(job.grid))}"
    return f"{', '.join(map(_format_value, job.grid[key]))}"


def expand_job(job: JobSpec, data_keys: Mapping[str, str | None] | None = None) -> Plan:
    """The plan of a job; `data_keys` maps a data path to what its folder calls its content.

    Raises UsageError naming the point where settings do not go together.
    """
    runs: dict[str, Run] = {}
    combinations = grid_points(job)
    if not combinations:
        raise UsageError("exclude: leaves no run: every combination of the grid is excluded")
    varied = sorted({key for point in combinations for key in point})
    for point in combinations:
        for repeat in range(job.repeats):
            run = _run(job, point, repeat, varied, data_keys or {})
            _check_distinct(runs.setdefault(run.id, run), run)
    if job.baseline is not None:
        base = _run(job, job.baseline, 0, varied, data_keys or {})
        runs = {run.id: run for run in _with_baseline(list(runs.values()), base)}
    ordered = sorted(runs.values(), key=lambda run: (run.repeat, run.id))
    return Plan(job=job.name, runs=ordered)


def _with_baseline(runs: list[Run], base: Run) -> list[Run]:
    """The runs, those of the baseline's point marked."""
    wanted = configuration_id(base)
    marked = [run.model_copy(update={"baseline": configuration_id(run) == wanted}) for run in runs]
    if not any(run.baseline for run in marked):
        raise UsageError(
            f"baseline: {_format_value(base.varied)} is no point of grid or points. Add it there."
        )
    return marked


def _check_distinct(first: Run, second: Run) -> None:
    if first.resources != second.resources:
        raise UsageError(
            "grid: memory and time limit do not tell runs apart: "
            f"{first.varied} and {second.varied} compute the same; vary something else with them"
        )


def _run(
    job: JobSpec,
    point: Mapping[str, Any],
    repeat: int,
    varied: list[str],
    data_keys: Mapping[str, str | None],
) -> Run:
    plain = apply_point(job, point)
    where = "".join(f" {key}={_format_value(value)}" for key, value in point.items()) or " the base"
    told = {key: plain[key.split(".")[0]].get(key.split(".")[1]) for key in varied}
    if isinstance(job.workload, Program):
        return _command_run(job.workload, plain, repeat, told, where)
    try:
        resources = Resources.model_validate(plain["resources"])
        data = Data.model_validate(plain["data"])
        model = Model.model_validate(plain["model"])
        training = Training.model_validate(plain["training"])
    except ValidationError as error:
        raise UsageError(f"grid point{where}: {describe_first_error(error)}") from None
    reasons = placement_conflicts(resources) + training_conflicts(resources, training)
    reasons += model_conflicts(training, model)
    reasons += memory_conflicts(resources, training, model)
    if reasons:
        raise UsageError(f"grid point{where}: " + "; ".join(reasons))
    key = data_keys.get(data.path)
    return Run(
        id=hash_identity(
            run_identity(job.workload, resources, key or data.path, model, training, repeat)
        ),
        repeat=repeat,
        varied=told,
        workload=job.workload,
        resources=resources,
        data=data,
        data_key=key,
        model=model,
        training=training,
    )


class _Given(RootModel[Parameters]):
    """A point's parameters, by the name that errors call them."""

    model_config = ConfigDict(title="parameters", strict=True)


def _command_run(
    program: Program, plain: Mapping[str, Any], repeat: int, told: dict[str, Any], where: str
) -> Run:
    try:
        resources = Resources.model_validate(plain["resources"])
        parameters = _Given.model_validate(plain["parameters"]).root
    except ValidationError as error:
        raise UsageError(f"grid point{where}: {describe_first_error(error)}") from None
    known = programs.placeholder_values(parameters, resources.model_dump(mode="json"), repeat)
    problem = programs.find_placeholder_problem(program, parameters, known)
    problem = problem or "; ".join(placement_conflicts(resources))
    if problem:
        raise UsageError(f"grid point{where}: {problem}")
    return Run(
        id=hash_identity(command_identity(program, parameters, resources, repeat)),
        repeat=repeat,
        varied=told,
        workload=program,
        by_hand=False,
        parameters=parameters,
        resources=resources,
        data=None,
        data_key=None,
        model=None,
        training=None,
    )


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) and len(value) < 100 else abbreviate(value)


def describe_first_error(error: ValidationError) -> str:
    """pydantic's first complaint as `section.key: what came, what is expected`."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in [error.title.lower(), *error_location(problem["loc"])])
    message = problem["msg"].removeprefix("Value error, ")
    return (
        f"{where}: {message} (came: {abbreviate(problem['input'])})" if problem["loc"] else message
    )


def max_core_hours(runs: list[Run]) -> float:
    """The most that these runs can cost: every one up to its time limit. Where they run side by
    side, a short pack holds the cores of a whole one."""
    minutes = (
        -(-number // shape.side_by_side) * shape.nodes * shape.node_cores * shape.timeout_min
        for shape, number in Counter(run.resources for run in runs).items()
    )
    return sum(minutes) / 60


def merge_plans(old: Plan, new: Plan) -> Plan:
    """The new plan, with the old one's other runs kept and marked retired."""
    present = {run.id for run in new.runs}
    gone = [run.model_copy(update={"retired": True}) for run in old.runs if run.id not in present]
    return new.model_copy(update={"runs": new.runs + gone})


# Repeats of one configuration make a pack where there are enough of them, so that a pack's
# speed
# belongs to settings; what is left over is packed with others that ask for the same resources.

Pack = list[Run]
T = TypeVar("T")


def pack_runs(runs: Sequence[Run]) -> list[Pack]:
    """Every run once; in the order of the packs' first runs."""
    at = {run.id: number for number, run in enumerate(runs)}
    made = [pack for shape in packs_by_resources(runs) for pack in shape]
    return sorted(made, key=lambda pack: at[pack[0].id])


def packs_by_resources(runs: Sequence[Run]) -> list[list[Pack]]:
    """The packs of runs that ask for the same resources: only the last of them may be short."""
    shapes: dict[Resources, list[Run]] = defaultdict(list)
    for run in runs:
        shapes[run.resources].append(run)
    return [_packs_of_shape(alike) for alike in shapes.values()]


def _packs_of_shape(runs: Sequence[Run]) -> list[Pack]:
    size = runs[0].resources.side_by_side
    if size == 1:
        return [[run] for run in runs]
    alike: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        alike[configuration_id(run)].append(run)
    full = [pack for each in alike.values() for pack in batched(each, size) if len(pack) == size]
    at = {run.id: number for number, run in enumerate(runs)}
    placed = {run.id for pack in full for run in pack}
    over = [run for run in runs if run.id not in placed]
    return sorted(full, key=lambda pack: at[pack[0].id]) + batched(over, size)


def batched(several: Sequence[T], size: int) -> list[list[T]]:
    return [list(several[at : at + size]) for at in range(0, len(several), size)]


ENGINE = "training.engine"


def missing_native_engine(job: JobSpec) -> str | None:
    """Why engine native, which the job asks for, cannot be had here."""
    if not _asks(job):
        return None
    try:
        load_library()
    except NotBuilt as missing:
        return missing.reason
    return None


def describe_engine_fallback(reason: str) -> str:
    return (
        f"{reason}: engine rowwise serves, which gives the same results, slower; these runs are "
        "rowwise ones. Install g++ and hpcncf again for the native engine"
    )


def with_engine_fallback(job: JobSpec, reason: str | None) -> JobSpec:
    """The job with engine rowwise for the native one, where there is a `reason`.

    A run's id, its record and the tables then name the engine that really trains it; once the
    native one is there, the job file asks for other runs.
    """
    if reason is None:
        return job
    # Point by point: what `exclude` leaves out by the engine's name is left out before.
    points = [
        {key: _other(value) if key == ENGINE else value for key, value in point.items()}
        for point in grid_points(job)
    ]
    several = {"grid": {}, "exclude": [], "points": points} if points != [{}] else {}
    changed = job.training.model_copy(update={"engine": _other(job.training.engine)})
    return job.model_copy(update={"training": changed, **several})


def _asks(job: JobSpec) -> bool:
    points = [job.training.engine, *job.grid.get(ENGINE, []), *(each.get(ENGINE) for each in job.points)]
    return job.workload == "ncf" and "native" in points


def _other(engine: Any) -> Any:
    return "rowwise" if engine == "native" else engine
