"""One step of a tuning: what the records tell is read, the next runs are chosen and submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcncf import collect, jobfile, results, serving
from hpcncf.errors import UsageError
from hpcncf.ncf.data import manifest
from hpcncf.paths import ResultPaths
from hpcncf.slurm import sites
from hpcncf.slurm.limits import Limits
from hpcncf.spec import JobSpec
from hpcncf.submissions import Cluster
from hpcncf.submit import launch
from hpcncf.submit.launch import Launched
from hpcncf.tune import choose, figures, grid, saved, trials
from hpcncf.tune.choose import Rules
from hpcncf.tune.grid import Grid
from hpcncf.tune.saved import Tuning
from hpcncf.tune.values import Ask, Objective, Step, Trial
from hpcncf_analysis.summary import Configuration

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
    """What the records tell at this moment, and what follows."""

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
    job = sites.anchored(jobfile.load_jobfile(path, settings), path.parent)
    return job.model_copy(update={"name": f"{job.name[: 64 - len(SUFFIX)]}{SUFFIX}"})


def grid_of(job: JobSpec, cluster: Cluster, limits: Limits | None, gpu_hour: float = 0.0) -> Grid:
    """Without the points that cannot run here. `gpu_hour`: core-hours that an hour of a GPU counts
    for. Raises UsageError where none can, where data is not prepared, and where GPUs have no price.
    """
    job = serving.served(job, serving.problem(job))
    keys = jobfile.data_keys(job)
    for path, key in keys.items():
        if key is None:
            raise UsageError(
                f"data.path: {path} holds no prepared data: make it with "
                f"`{manifest.prepare_command(job.data.dataset if job.data else None, Path(path))}`"
            )
    rows = {path: manifest.read(Path(path)).train_rows for path in keys}
    found = grid.of(job, keys, rows)
    runs = {point.index: found.run(Ask(point.index, None, 0)) for point in found.points}
    refused = launch.refusals(list(runs.values()), cluster, limits)
    reasons = {index: refused[run.id] for index, run in runs.items() if run.id in refused}
    return found.without(reasons).priced(gpu_hour)


def look(going: Going) -> Now:
    tuning = saved.read_saved(going.paths, going.grid.job)
    asks, rows = tuning.asks(), dict[str, Mapping[str, Any]]()
    if asks and going.paths.plan.exists():
        rows = {row["run_id"]: row for row in collect.collect(going.paths).runs}
    found = trials.of_trials(going.grid, asks, rows)
    whole = trials.whole_runs(going.grid, found, rows)
    unsound = trials.unsound_trials(going.grid, whole)
    step = choose.next_step(going.grid.points, found, rules(going, unsound))
    return Now(tuning, found, rows, whole, unsound, step, _price(going, found, step))


def rules(going: Going, unsound: frozenset[str]) -> Rules:
    judges = going.grid.job.training.evaluation != "none"
    return Rules(going.objective, going.core_hours, judges, frozenset(unsound))


def _price(going: Going, found: list[Trial], step: Step) -> float | None:
    """What the step's runs should cost; those that are sent again for the second time, too."""
    by_index = {point.index: point for point in going.grid.points}
    known = figures.of_points(going.grid.points, found)
    again = [trial.ask for trial in found if trial.fate == "open" and trial.ask.point in by_index]
    prices = [figures.core_hours(ask, by_index, known, found) for ask in (*again, *step.asks)]
    told = [price for price in prices if price is not None]
    return sum(told) if len(told) == len(prices) else None


def send(going: Going, now: Now) -> Launched:
    """Note the step's runs, then submit them, and whatever was asked for and did not end."""
    tuning = now.tuning.then(now.step.why, now.step.asks) if now.step.asks else now.tuning
    with results.writing(going.paths.folder), results.locked(going.paths):
        if saved.read_saved(going.paths, going.grid.job) != now.tuning:
            raise UsageError(f"{going.paths.folder}: another `hpcncf tune` is at work there")
        saved.write(going.paths, tuning)
    plan = results.leave_plan(going.paths, going.grid.job, going.grid.plan(tuning.asks()))
    failed = {going.grid.run(trial.ask).id for trial in now.trials if trial.fate == "failed"}
    return launch.submit(
        going.paths,
        going.grid.job,
        plan,
        going.cluster,
        limits=going.limits,
        without=failed,
    )
