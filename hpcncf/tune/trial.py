"""One call of a tuning: read the trials, select and submit the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from hpcncf.collect import collect
from hpcncf.errors import UsageError
from hpcncf.job.load import load_job, read_data_keys, read_datasets
from hpcncf.job.plan import missing_native_engine, with_engine_fallback
from hpcncf.job.spec import JobSpec
from hpcncf.launch.submit import Launched, find_refusals, submit
from hpcncf.ncf.data.manifest import prepare_command, read_manifest
from hpcncf.paths import ResultPaths
from hpcncf.records import schema
from hpcncf.records.plan_file import leave_plan, locked, writing
from hpcncf.records.schema import SCHEMA_VERSION, Integer, RecordPart
from hpcncf.records.submissions import Cluster
from hpcncf.slurm.preflight import Limits
from hpcncf.slurm.site import anchored
from hpcncf.tune.search import (
    Ask,
    Fate,
    Grid,
    Objective,
    Point,
    Rules,
    Step,
    Trial,
    build_grid,
    core_hours,
    figures_of_points,
    next_step,
)
from hpcncf_analysis.configurations import Configuration, group_configurations
from hpcncf_analysis.quality import holds_quality


class Asked(RecordPart):
    """One run: a point of the grid, by its place there, and its length."""

    point: Integer
    steps: Integer | None
    """None: whole, as the job file has it."""
    repeat: Integer


class Round(RecordPart):
    why: str
    asks: list[Asked]


class Tuning(RecordPart):
    """A job's grid, and the rounds of runs that were asked for."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["tuning"] = "tuning"
    job: dict[str, Any]
    """The job file's settings, resolved, but those at their defaults, which a later version may
    have more of: the grid whose places the asks name."""
    rounds: list[Round] = []  # noqa: RUF012  pydantic copies it

    def asks(self) -> list[Ask]:
        return [
            Ask(each.point, each.steps, each.repeat) for one in self.rounds for each in one.asks
        ]

    def then(self, why: str, asks: Sequence[Ask]) -> Tuning:
        """With a round more."""
        more = Round(why=why, asks=[Asked(**vars(ask)) for ask in asks])
        return self.model_copy(update={"rounds": [*self.rounds, more]})


def read_saved(paths: ResultPaths, job: JobSpec) -> Tuning:
    """What was asked for so far, nothing where the folder has no tuning yet.

    Raises UsageError where it has another grid's.
    """
    plain = job.model_dump(mode="json", exclude_defaults=True)
    if not paths.tuning.exists():
        return Tuning(job=plain)
    found = schema.read_record(paths.tuning, Tuning)
    if found.job != plain:
        keys = found.job.keys() | plain.keys()
        changed = sorted(key for key in keys if found.job.get(key) != plain.get(key))
        raise UsageError(
            f"{paths.tuning}: of a job with other settings ({', '.join(changed)}): the tuning "
            "that is there goes on with the same job file only; give another folder with --results"
        )
    return found


def write(paths: ResultPaths, tuning: Tuning) -> None:
    schema.write_record(paths.tuning, tuning)


Row = Mapping[str, Any]

FATES: Final[dict[str, Fate]] = {
    "completed": "completed",
    "pending": "under way",
    "running": "under way",
    "unknown": "under way",
    "failed": "failed",
    "timeout": "failed",
    "out_of_memory": "failed",
    "planned": "open",
    "stopped": "open",
    "cancelled": "open",
    "node_failed": "open",
    "lost": "open",
}
# What was cut off so often by no fault of its own is given up.
ATTEMPTS: Final = 3


def read_trials(grid: Grid, asks: Sequence[Ask], rows: Mapping[str, Row]) -> list[Trial]:
    """`rows`: of the table of runs, by run id. In the order asked."""
    points = {point.index: point for point in grid.points}
    counted = set[str]()
    found = []
    for ask in asks:
        run_id = grid.run(ask).id
        row = rows.get(run_id)
        # Two points may be one and the same run when cut: it is paid once.
        paid = 0.0 if row is None or run_id in counted else _charged(row, points.get(ask.point))
        counted.add(run_id)
        whole_steps = points[ask.point].whole_steps if ask.point in points else 0
        found.append(_trial(ask, row, paid, ask.steps or whole_steps))
    return found


def _charged(row: Row, point: Point | None) -> float:
    """Core-hours of all attempts, and of their GPUs as many as an hour of one counts for; None: a
    point that cannot run here any more."""
    core_hours = float(row["core_hours_all"] or 0.0)
    return core_hours if point is None else core_hours * point.charged / point.cores


def _trial(ask: Ask, row: Row | None, core_hours: float, steps: int) -> Trial:
    if row is None:
        return Trial(ask, "open")
    fate = FATES[row["state"]]
    if fate == "open" and (row["attempts"] or 0) >= ATTEMPTS:
        fate = "failed"
    if fate != "completed":
        reason = f"{row['state']}{', ' if row['reason'] else ''}{row['reason']}"
        return Trial(ask, fate, core_hours, reason=reason)
    if not row["seconds_per_epoch"] or not row["training_s"]:
        return Trial(ask, "failed", core_hours, reason="its records have no speed")
    return Trial(
        ask=ask,
        fate="completed",
        core_hours=core_hours,
        epoch_s=row["seconds_per_epoch"],
        training_s=row["training_s"],
        elapsed_s=row["elapsed_s"],
        apart_s=(row["evaluation_s"] or 0.0) + (row["checkpoint_s"] or 0.0),
        steps=steps,
        hr10=row["hr10"],
    )


def select_whole_runs(
    grid: Grid, trials: Sequence[Trial], rows: Mapping[str, Row]
) -> list[tuple[int, Configuration]]:
    """Point and figures of each configuration that ran as the job file has it."""
    ids = {
        grid.run(trial.ask).id: trial.ask.point
        for trial in trials
        if trial.whole and trial.fate == "completed"
    }
    found = group_configurations(rows[run_id] for run_id in ids)
    return [(ids[one.rows[0]["run_id"]], one) for one in found]


def unsound_trials(grid: Grid, whole: Sequence[tuple[int, Configuration]]) -> frozenset[str]:
    """The classes of which some whole run's quality is worse than chance explains."""
    classes = {point.index: str(point.quality) for point in grid.points}
    all_of_them = [one for _, one in whole]
    return frozenset(classes[point] for point, one in whole if not holds_quality(one, all_of_them))


# Of the results folder, behind the job's own name.
SUFFIX = "-tune"


@dataclass(frozen=True)
class Going:
    """A tuning under way: what is fixed for all of its steps."""

    paths: ResultPaths
    grid: Grid
    objective: Objective
    core_hours: float
    """The budget."""
    cluster: Cluster
    limits: Limits | None

    @property
    def gpu_hour(self) -> float:
        """Core-hours that an hour of a GPU counts for."""
        return max((point.gpu_hour for point in self.grid.points), default=0.0)

    @property
    def has_gpus(self) -> bool:
        return any(point.gpus for point in self.grid.points)


@dataclass(frozen=True)
class Now:
    """The state of the records at this moment, and the next step."""

    tuning: Tuning
    trials: list[Trial]
    rows: Mapping[str, Mapping[str, Any]]
    """The table of runs, by run id."""
    whole: list[tuple[int, Configuration]]
    """Points that ran as the job file has them."""
    unsound: frozenset[str]
    step: Step
    step_core_h: float | None
    """What the runs of this step should cost; None where nothing has run yet."""

    @property
    def spent_core_h(self) -> float:
        return sum(trial.core_hours for trial in self.trials)


def job_of(path: Path, settings: list[str]) -> JobSpec:
    """The job file's settings, under the name of its tuning. Raises UsageError."""
    job = anchored(load_job(path, settings), path.parent)
    return job.model_copy(update={"name": f"{job.name[: 64 - len(SUFFIX)]}{SUFFIX}"})


def grid_of(job: JobSpec, cluster: Cluster, limits: Limits | None, gpu_hour: float = 0.0) -> Grid:
    """Without the points that cannot run here. `gpu_hour`: core-hours that an hour of a GPU counts
    for. Raises UsageError where none can, where data is not prepared, and where GPUs have no price.
    """
    job = with_engine_fallback(job, missing_native_engine(job))
    keys = read_data_keys(job)
    for path, key in keys.items():
        if key is None:
            raise UsageError(
                f"data.path: {path} holds no prepared data: make it with "
                f"`{prepare_command(job.data.dataset if job.data else None, Path(path))}`"
            )
    rows = {path: read_manifest(Path(path)).train_rows for path in keys}
    found = build_grid(job, keys, rows, read_datasets(job))
    runs = {point.index: found.run(Ask(point.index, None, 0)) for point in found.points}
    refused = find_refusals(list(runs.values()), cluster, limits, some=True)
    reasons = {index: refused[run.id] for index, run in runs.items() if run.id in refused}
    return found.without(reasons).priced(gpu_hour)


def read_state(going: Going) -> Now:
    tuning = read_saved(going.paths, going.grid.job)
    asks, rows = tuning.asks(), dict[str, Mapping[str, Any]]()
    if asks and going.paths.plan.exists():
        rows = {row["run_id"]: row for row in collect.collect(going.paths).runs}
    found = read_trials(going.grid, asks, rows)
    whole = select_whole_runs(going.grid, found, rows)
    unsound = unsound_trials(going.grid, whole)
    step = next_step(going.grid.points, found, rules(going, unsound))
    return Now(tuning, found, rows, whole, unsound, step, _price(going, found, step))


def rules(going: Going, unsound: frozenset[str]) -> Rules:
    judges = going.grid.job.training.evaluation != "none"
    return Rules(going.objective, going.core_hours, judges, frozenset(unsound))


def _price(going: Going, found: list[Trial], step: Step) -> float | None:
    """What the step's runs should cost; those that are sent again for the second time, too."""
    by_index = {point.index: point for point in going.grid.points}
    known = figures_of_points(going.grid.points, found)
    again = [trial.ask for trial in found if trial.fate == "open" and trial.ask.point in by_index]
    prices = [core_hours(ask, by_index, known, found) for ask in (*again, *step.asks)]
    summands = [price for price in prices if price is not None]
    return sum(summands) if len(summands) == len(prices) else None


def send(going: Going, now: Now) -> Launched:
    """Note the step's runs, then submit them, and whatever was asked for and did not end."""
    tuning = now.tuning.then(now.step.why, now.step.asks) if now.step.asks else now.tuning
    with writing(going.paths.folder), locked(going.paths):
        if read_saved(going.paths, going.grid.job) != now.tuning:
            raise UsageError(f"{going.paths.folder}: another `hpcncf tune` is at work there")
        write(going.paths, tuning)
    plan = leave_plan(going.paths, going.grid.job, going.grid.plan(tuning.asks()))
    failed = {going.grid.run(trial.ask).id for trial in now.trials if trial.fate == "failed"}
    return submit(
        going.paths,
        going.grid.job,
        plan,
        going.cluster,
        limits=going.limits,
        without=failed,
    )
