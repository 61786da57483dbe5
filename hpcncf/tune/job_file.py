"""The trials of a job file's grid: successive halving within classes of equal quality.

First every point a few steps; then, among points that train the same model, the promising ones
longer; the best of each such class once whole, for its quality; and repeats if two are near.
"""

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
from hpcncf.tune.search import (
    Ask,
    Figure,
    Grid,
    Known,
    Objective,
    Point,
    Rules,
    Step,
    Trial,
    best_first,
    build_run,
    compared,
    open_ones,
    startup_s,
)
from hpcncf.tune.tuning import Row, Tuning
from hpcncf_analysis.configurations import Configuration, group_configurations
from hpcncf_analysis.quality import worse_models

# Jamieson and Talwalkar 2016; a third is kept each time, as in Hyperband (Li et al. 2018). Length
# is seconds of training, not epochs: speed is compared, and a fast engine needs more steps to show
# its own. Nobody wins on less than the finalists had.

KEPT_ONE_IN: Final = 3
"""One of so many goes on."""
FINALISTS: Final = 3
# The first race lasts as long as a run's start, which is paid in any case, and never less.
SHORTEST_S: Final = 2.0
LONG_ENOUGH: Final = 0.8
# What a first glance saw so many times slower than the best is not looked at again.
FAR_BEHIND: Final = 3.0


def finalists(
    figures: Sequence[Figure], objective: Objective, first_s: float
) -> tuple[list[Figure], list[tuple[Figure, float]]]:
    """Return a class's remaining points, and those that must train longer, with seconds.

    `figures` are of points that train the same model. Each round of this successive halving
    trains `KEPT_ONE_IN` times as long as the one before, the first `first_s` seconds.
    """
    left, target = best_first(figures, objective), first_s
    while len(left) > 1:
        left = _kept(left, objective)
        short = [one for one in left if not one.whole and one.trained_s < LONG_ENOUGH * target]
        if short or len(left) <= FINALISTS:
            return left, [(one, target) for one in short]
        left, target = best_first(left, objective), target * KEPT_ONE_IN
    return left, []


def _kept(best: Sequence[Figure], objective: Objective) -> list[Figure]:
    """Select the points of one class that go on to the next round.

    With objective `knee` the cheapest point always goes on: whether others are worth their cost
    is judged against it.
    """
    number = len(best) if len(best) <= FINALISTS else max(ceil(len(best) / KEPT_ONE_IN), 2)
    far = FAR_BEHIND * compared(best[0], objective)[1]
    kept = [one for one in best[:number] if compared(one, objective)[0] <= far]
    cheapest = min(best, key=lambda one: one.price)
    return kept if objective != "knee" or cheapest in kept else [*kept, cheapest]


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


def select_runs(known: Known) -> Step:
    return _glances(known) or _races(known) or _verify(known) or _done(known)


def _glances(known: Known) -> Step | None:
    asks = [_glance(known, point) for point in _spread(known)]
    if not asks:
        return None
    price = known.price(asks)
    if price is None:  # nothing has run yet: one, to see what a run costs
        return Step("send", "a first run, to see what one costs", tuple(asks[:1]))
    if SAFETY * price > known.left_h:
        asks = asks[: len(known.seen)]
    fit = known.fitting(asks, known.rules.core_hours * RESERVED)
    return Step("send", "every point a few steps", fit) if fit else None


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


def _finalists(known: Known) -> tuple[list[Figure], list[tuple[Figure, float]]]:
    """Return the finalists of all sound classes, best first, and those to train longer.

    A class is sound if the quality of its whole runs is not significantly worse. Seconds of
    training come with each point that must train longer.
    """
    glances = [trial for trial in known.trials if trial.ask.repeat == 0]
    first_s = max(SHORTEST_S, startup_s(glances[: len(known.points)]))
    left, short = list[Figure](), list[tuple[Figure, float]]()
    sound = [one for one in known.figures.values() if one.point.quality not in known.rules.unsound]
    for members in known.classes(sound):
        kept, more = finalists(members, known.rules.objective, first_s)
        left, short = left + kept, short + more
    return best_first(left, known.rules.objective), short


def _races(known: Known) -> Step | None:
    left, short = _finalists(known)
    if not left:
        return None
    reserve = known.price([known.ask(left[0].point)]) or 0.0
    by_place = {one.point.index: place for place, one in enumerate(left)}
    short.sort(key=lambda each: by_place[each[0].point.index])
    longer = [
        known.ask(one.point, ceil(seconds / known.step_s(one.point))) for one, seconds in short
    ]
    asks = known.fitting(longer, reserve)
    if asks:
        return Step("send", "the promising ones longer", asks)
    # Of a class whose best ran whole, none.
    races = [each for each in known.classes(left) if not each[0].whole]
    near = [one.point for each in races for one in open_ones(each, known.rules.objective)]
    again = [known.ask(point, known.longest(point).ask.steps) for point in near]
    asks = known.fitting(again, reserve)
    return Step("send", "repeats, for two or more are near each other", asks) if asks else None


def _verify(known: Known) -> Step | None:
    """Build the step of whole runs of each class's best point, then of repeats near the best.

    Without evaluation all points are one class. Returns None if nothing is missing or nothing
    fits into the budget.
    """
    left, _ = _finalists(known)
    missing = _unevaluated(known, left)
    asks = known.fitting([known.ask(one.point) for one in missing])
    if asks:
        return Step("send", "the best as the job file has them, with their quality", asks)
    whole = [one for one in left if one.whole]
    near = [] if missing or not whole else open_ones(whole, known.rules.objective)
    asks = known.fitting([known.ask(one.point) for one in near])
    return Step("send", "repeats, for the best are near each other", asks) if asks else None


def _unevaluated(known: Known, left: Sequence[Figure]) -> list[Figure]:
    """List the best point of each class that has not completed a whole run."""
    return [members[0] for members in known.classes(left) if not members[0].whole]


def _done(known: Known) -> Step:
    left, _ = _finalists(known)
    if not left:
        return Step("done", "no point is left: those that ran at all failed")
    best = left[0]
    if best.whole:
        why = ""
        if missing := _unevaluated(known, left):
            why = (
                "the budget has no room to evaluate another model, as of "
                f"{missing[0].point.label}: it may be better"
            )
        return Step("done", why, chosen=best.point.index, verified=True)
    needed = known.price([known.ask(best.point)]) or 0.0
    why = (
        f"the budget has no room for the whole run of {best.point.label}: about {needed:.2g} "
        f"core-hours, {max(known.left_h, 0.0):.2g} are left"
    )
    chosen = next((one for one in left if one.whole), best)
    return Step("done", why, chosen=chosen.point.index, verified=chosen.whole)


def enough(known: Known) -> float | None:
    """Estimate the core-hours of a sufficient budget; None before any run completed.

    It has room for a first look at every point and for the whole run of the best point of each
    class. Races and repeats may take more.
    """
    looks = known.price(
        [_glance(known, one) for one in known.points if one.index not in known.seen]
    )
    left, _ = _finalists(known)
    whole = known.price([known.ask(one.point) for one in _unevaluated(known, left)])
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
            elapsed_s=row["elapsed_s"],
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

    def select(self, known: Known) -> Step:
        return select_runs(known)
