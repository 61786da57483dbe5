"""A job file as a source of points: its grid, whose runs can be cut short."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Final

from hpcncf.data.manifest import prepare_command, read_manifest
from hpcncf.errors import UsageError
from hpcncf.job.engine_fallback import missing_native_engine, with_engine_fallback
from hpcncf.job.expand import grid_points
from hpcncf.job.load import load_job, read_data_keys, read_datasets
from hpcncf.job.plan import Run
from hpcncf.job.spec import JobSpec
from hpcncf.launch.submit import find_refusals
from hpcncf.records.submissions import Cluster
from hpcncf.slurm.preflight import Limits
from hpcncf.tune.search import Candidates, find_finalists, unevaluated
from hpcncf.tune.trials import Ask, Figure, Known, Point, Rules, Trial
from hpcncf.tune.tuning import Grid, Row, Tuning, build_run
from hpcncf_analysis.configurations import Configuration, group_configurations
from hpcncf_analysis.quality import worse_models

# These change how fast a model is trained, not which one.
SPEED_ONLY: Final = {
    *("device", "backend", "threads", "engine", "loader", "num_workers", "adam", "sparse", "sync"),
    *("parallel", "compile", "cuda_graph"),
    *("accumulate", "global_batch_size", "batch_size_per_rank", "checkpoint_every"),
    *("checkpoint_every_min", "log_every", "omp_wait_policy", "pin"),
    "cudnn_benchmark",
    *("persistent_workers", "prefetch_factor", "pin_memory"),
    *("non_blocking", "prefetch_to_device", "profile", "profile_steps", "profile_ranks"),
    *("profile_rate", "profile_native", "profile_subprocesses"),
}


def build_grid(
    job: JobSpec,
    keys: Mapping[str, str | None],
    rows: Mapping[str, int],
    datasets: Mapping[str, str] | None = None,
) -> Grid:
    """Build the grid of a tuning from a job file's points.

    `rows` maps data paths to numbers of training positives, `datasets` data paths to formats.

    Raises UsageError if there is nothing to choose from, or if runs cannot be made shorter.
    """
    if job.workload != "ncf":
        raise UsageError(
            "tune makes runs shorter by training.max_steps, which a command has not: "
            "give its points to `hpcncf submit` instead"
        )
    runs: dict[str, tuple[dict[str, Any], Run]] = {}
    for settings in grid_points(job):
        run = build_run(job, settings, 0, keys, datasets or {})
        runs.setdefault(run.id, (settings, run))
    if len(runs) < 2:
        raise UsageError("grid: tune chooses among points, and this job has one: add a grid")
    points = tuple(
        _point(index, settings, run, rows) for index, (settings, run) in enumerate(runs.values())
    )
    return Grid(job, keys, tuple(settings for settings, _ in runs.values()), points, datasets or {})


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
        quality=_quality(run, batch),
        values=frozenset(values),
    )


def _quality(run: Run, batch: int) -> str:
    """Key that is equal for runs that train the same model on the same instances in order."""
    assert run.training is not None
    assert run.model is not None
    training = run.training.model_dump(mode="json", exclude=SPEED_ONLY)
    identity = [run.data_key, run.model.model_dump(mode="json"), training, batch]
    return json.dumps(identity, sort_keys=True)


# A first glance: so many positives, but not fewer steps than that, a tenth of which is warm-up.
GLANCE: Final = 20_000
FEWEST_STEPS: Final = 10
# All points at once only if they fit though each cost so many times the dearest seen so far.
SAFETY: Final = 3
# Of the budget, kept from first glances: some points unseen are better than none that ran whole.
RESERVED: Final = 0.3


def _glance(known: Known, point: Point) -> Ask:
    return known.ask(point, max(FEWEST_STEPS, ceil(GLANCE / point.batch)))


def _spread(known: Known) -> list[Point]:
    """Order the unseen points so that each is as unlike those before it as possible.

    Of two equally unlike points the one with fewer cores comes first. Thus a budget without
    room for all points covers some of every setting.
    """
    by_index = {one.index: one for one in known.points}
    last = [one for one in known.points if one.index in known.seen]
    unseen = {one.index: len(one.values) for one in known.points if one not in last}
    found = []
    while unseen:
        for index in unseen:
            apart = [len(by_index[index].values - one.values) for one in last]
            unseen[index] = min([unseen[index], *apart])
        best = max(unseen, key=lambda at: (unseen[at], -by_index[at].cores, -at))
        del unseen[best]
        found.append(by_index[best])
        last = [by_index[best]]
    return found


def enough(known: Known) -> float | None:
    """Estimate the core-hours of a sufficient budget; None before any run completed.

    It has room for a first look at every point and for the whole run of the best point of each
    class. Races and repeats may take more.
    """
    looks = known.price(
        [_glance(known, one) for one in known.points if one.index not in known.seen]
    )
    left, _ = find_finalists(known)
    whole = known.price([known.ask(one.point) for one in unevaluated(known, left)])
    if looks is None or whole is None:
        return None
    return max((known.spent_h + looks) / (1 - RESERVED), known.spent_h + looks + whole)


# Of the results folder, behind the job's own name.
SUFFIX: Final = "-tune"


def job_of(path: Path, settings: list[str]) -> JobSpec:
    """Load the job file with its settings, renamed for the tuning. Raises UsageError."""
    job = load_job(path, settings)
    return job.model_copy(update={"name": f"{job.name[: 64 - len(SUFFIX)]}{SUFFIX}"})


def grid_of(job: JobSpec, cluster: Cluster, limits: Limits | None) -> Grid:
    """Build the job's grid from its prepared data, without points that cannot run here.

    Raises UsageError if none can, if data is not prepared, and if only some points have GPUs.
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
    return with_one_price(found.without(reasons))


def with_one_price(grid: Grid) -> Grid:
    """Return the grid unchanged. Raises UsageError if only some of its points have GPUs."""
    with_gpus = [point.label for point in grid.points if point.gpus]
    without = [point.label for point in grid.points if not point.gpus]
    if with_gpus and without:
        raise UsageError(
            f"grid: {with_gpus[0]} has GPUs and {without[0]} has none, and an hour of a GPU has no "
            "price in core-hours: tune the two apart, with -s"
        )
    return grid


def select_whole_runs(
    grid: Grid, trials: Sequence[Trial], rows: Mapping[str, Row]
) -> list[tuple[int, Configuration]]:
    """List point index and configuration of all points with a completed whole run."""
    ids = {
        grid.run(trial.ask).id: trial.ask.point
        for trial in trials
        if trial.whole and trial.fate == "completed"
    }
    found = group_configurations(rows[run_id] for run_id in ids)
    return [(ids[one.rows[0]["run_id"]], one) for one in found]


@dataclass(frozen=True)
class JobFile(Tuning):
    """The tuning of a job file's grid."""

    def measured(self, trial: Trial, row: Row) -> Trial:
        if not row["seconds_per_epoch"] or not row["training_s"]:
            return replace(trial, fate="failed", reason="its records have no speed")
        whole = {point.index: point.whole_steps for point in self.grid.points}
        return replace(
            trial,
            epoch_s=row["seconds_per_epoch"],
            training_s=row["training_s"],
            apart_s=(row["evaluation_s"] or 0.0) + (row["checkpoint_s"] or 0.0),
            steps=trial.ask.steps or whole.get(trial.ask.point, 0),
            hr10=row["hr10"],
        )

    def judged(self, trials: list[Trial], rows: Mapping[str, Row]) -> tuple[list[Trial], Rules]:
        """Return the trials and the rules, which name the classes of worse quality."""
        classes = {point.index: point.quality for point in self.grid.points}
        whole = select_whole_runs(self.grid, trials, rows)
        worse = worse_models([one for _, one in whole])
        unsound = {classes[at] for at, one in whole if one.key in worse}
        evaluates = self.grid.job.training.evaluation != "none"
        return trials, Rules(self.objective, self.core_hours, evaluates, frozenset(unsound))

    def candidates(self, known: Known) -> Candidates | None:
        """Points without a run: one first, to see what it costs, then all that surely fit."""
        points = _spread(known)
        if not points:
            return None
        asks = tuple(_glance(known, point) for point in points)
        price, number, why = known.price(asks), len(asks), "every point a few steps"
        if price is None:
            number, why = 1, "a first run, to see what one costs"
        elif SAFETY * price > known.left_h:
            number = len(known.seen)
        reserve_h = 0.0 if price is None else known.rules.core_hours * RESERVED
        return Candidates(why, points[:number], asks[:number], reserve_h=reserve_h)

    def choose(self, _: Known, finalists: Sequence[Figure]) -> Figure:
        """The best, or, if it could not run whole, the best of those that did."""
        return next((one for one in finalists if one.whole), finalists[0])
