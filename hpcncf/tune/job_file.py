"""The trials of a job file's grid: successive halving within classes of equal quality.

First every point a few steps; then, among points that train the same model, the promising ones
longer; the best of each such class once whole, for its quality; and repeats where two are near.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Final

from hpcncf.errors import UsageError
from hpcncf.job.load import load_job, read_data_keys, read_datasets
from hpcncf.job.plan import Run, grid_points, missing_native_engine, with_engine_fallback
from hpcncf.job.spec import JobSpec
from hpcncf.launch.submit import find_refusals
from hpcncf.ncf.data.manifest import prepare_command, read_manifest
from hpcncf.records.submissions import Cluster
from hpcncf.slurm.preflight import Limits
from hpcncf.slurm.site import with_absolute_site
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
    repeats,
    startup_s,
    step_s,
)
from hpcncf.tune.tuning import Row, Tuning
from hpcncf_analysis.configurations import Configuration, group_configurations
from hpcncf_analysis.quality import worse_models

# Jamieson and Talwalkar 2016; a third is kept each time, as in Hyperband (Li et al. 2018). Length
# is seconds of training, not epochs: speed is compared, and a fast engine needs more steps to show
# its own. Nobody wins on less than the finalists had.

KEPT: Final = 3
"""One of so many goes on."""
FINALISTS: Final = 3
# The first race lasts as long as a run's start, which is paid in any case, and never less.
SHORTEST_S: Final = 2.0
LONG_ENOUGH: Final = 0.8
# What a first glance saw so many times slower than the best is not looked at again.
FAR: Final = 3.0
# Nearer than that, two points with a run each are not distinguished.
# A cut run of so much of the whole may as well be whole, and be evaluated.
AS_WHOLE: Final = 0.8


def finalists(
    figures: Sequence[Figure], objective: Objective, first_s: float
) -> tuple[list[Figure], list[tuple[Figure, float]]]:
    """Who is left of a class, and those of them that must train longer first, with the seconds."""
    left, target = best_first(figures, objective), first_s
    while len(left) > 1:
        left = _kept(left, objective)
        short = [one for one in left if not one.whole and one.trained_s < LONG_ENOUGH * target]
        if short or len(left) <= FINALISTS:
            return left, [(one, target) for one in short]
        left, target = best_first(left, objective), target * KEPT
    return left, []


def _kept(best: Sequence[Figure], objective: Objective) -> list[Figure]:
    """With the cheapest: by it is judged which others are worth their cost."""
    number = len(best) if len(best) <= FINALISTS else max(ceil(len(best) / KEPT), 2)
    far = FAR * compared(best[0], objective)[1]
    kept = [one for one in best[:number] if compared(one, objective)[0] <= far]
    cheapest = min(best, key=lambda one: one.price)
    return kept if objective != "knee" or cheapest in kept else [*kept, cheapest]


def longer(one: Figure, seconds: float, trials: Sequence[Trial]) -> Ask:
    """A run that trains so many seconds, or whole where that is not much more."""
    steps = ceil(seconds / step_s(one, trials))
    return cut(one.point.index, steps, one.point.whole_steps, trials)


def cut(point: int, steps: int, whole_steps: int, trials: Sequence[Trial]) -> Ask:
    length = None if steps >= AS_WHOLE * whole_steps else steps
    return Ask(point, length, repeats(point, length, trials))


def once_more(one: Figure, trials: Sequence[Trial]) -> Ask:
    """A repeat of its longest run."""
    own = [trial for trial in trials if trial.ask.point == one.point.index]
    longest = max(own, key=lambda trial: trial.training_s)
    point, steps = longest.ask.point, longest.ask.steps
    return Ask(point, steps, repeats(point, steps, trials))


# These change how fast a model is trained, not which one.
SPEED_ONLY: Final = {
    *("device", "backend", "threads", "engine", "loader", "num_workers", "adam", "sparse"),
    *("parallel", "bucket_mb", "gradient_as_bucket_view", "static_graph", "compile", "cuda_graph"),
    *("accumulate", "global_batch_size", "batch_size_per_rank", "checkpoint_every"),
    *("checkpoint_every_min", "log_every", "interop_threads", "omp_wait_policy", "pin"),
    "cudnn_benchmark",
    *("workers", "persistent_workers", "prefetch_factor", "collate", "pin_memory"),
    *("non_blocking", "prefetch_to_device", "profile", "profile_steps", "profile_ranks"),
    *("profile_rate", "profile_native", "profile_subprocesses"),
}


def build_grid(
    job: JobSpec,
    keys: Mapping[str, str | None],
    rows: Mapping[str, int],
    datasets: Mapping[str, str] | None = None,
) -> Grid:
    """`rows`: data path -> training positives; `datasets`: data path -> format.

    Raises UsageError where there is nothing to choose from, or where runs cannot be made shorter.
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
    identity = [run.data_key, run.model.model_dump(mode="json"), training, batch, ranks]
    return json.dumps(identity, sort_keys=True)


# A first glance: so many positives, but not fewer steps than that, a tenth of which is warm-up.
GLANCE: Final = 20_000
FEWEST_STEPS: Final = 10
# All points at once only where they fit though each cost so many times the dearest seen so far.
SAFETY: Final = 3
# Of the budget, kept from first glances: some points unseen are better than none that ran whole.
RESERVED: Final = 0.3


def enough(known: Known) -> float | None:
    """Core-hours of a budget that has room for a look at every point and for the best of each class
    whole, by what was measured; None where nothing was. Races and repeats may take more."""
    seen = {trial.ask.point for trial in known.trials}
    looks = known.price([_glance(point) for point in known.points if point.index not in seen])
    left, _ = _finalists(known)
    leaders = [members[0] for members in known.classes(left) if not members[0].whole]
    whole = known.price([_ask_whole(one, known.trials) for one in leaders])
    if looks is None or whole is None:
        return None
    spent = known.rules.core_hours - known.left_h
    return max((spent + looks) / (1 - RESERVED), spent + looks + whole)


def select_runs(known: Known) -> Step:
    return _glances(known) or _races(known) or _verify(known) or _done(known)


def _glances(known: Known) -> Step | None:
    seen = {trial.ask.point for trial in known.trials}
    asks = [_glance(point) for point in _spread(known.points, seen)]
    if not asks:
        return None
    price = known.price(asks)
    if price is None:  # nothing has run yet: one, to see what a run costs
        return Step("send", "a first run, to see what one costs", tuple(asks[:1]))
    if SAFETY * price > known.left_h:
        asks = asks[: len(seen)]
    asks = list(known.fitting(asks, known.rules.core_hours * RESERVED))
    return Step("send", "every point a few steps", tuple(asks)) if asks else None


def _spread(points: Sequence[Point], seen: Collection[int]) -> list[Point]:
    """Those not seen yet, each as unlike those before it as can be, the cheaper of two first: a
    budget that has no room for all has seen some of every setting."""
    unseen = {one.index: len(one.values) for one in points if one.index not in seen}
    by_index = {one.index: one for one in points}
    found, last = [], [one for one in points if one.index in seen]
    while unseen:
        for index in unseen:
            apart = [len(by_index[index].values - one.values) for one in last]
            unseen[index] = min([unseen[index], *apart])
        best = max(unseen, key=lambda at: (unseen[at], -by_index[at].cores, -at))
        del unseen[best]
        found.append(by_index[best])
        last = [by_index[best]]
    return found


def _glance(point: Point) -> Ask:
    steps = max(FEWEST_STEPS, ceil(GLANCE / point.batch))
    return cut(point.index, steps, point.whole_steps, [])


def _finalists(known: Known) -> tuple[list[Figure], list[tuple[Figure, float]]]:
    """Of all classes whose quality holds, best first; and who must train longer."""
    glances = [trial for trial in known.trials if trial.ask.repeat == 0]
    first_s = max(SHORTEST_S, startup_s(glances[: len(known.points)]))
    left, short = list[Figure](), list[tuple[Figure, float]]()
    sound = [one for one in known.of.values() if one.point.quality not in known.rules.unsound]
    for members in known.classes(sound):
        kept, more = finalists(members, known.rules.objective, first_s)
        left, short = left + kept, short + more
    return best_first(left, known.rules.objective), short


def _races(known: Known) -> Step | None:
    left, short = _finalists(known)
    if not left:
        return None
    reserve = known.price([_ask_whole(left[0], known.trials)]) or 0.0
    by_place = {one.point.index: place for place, one in enumerate(left)}
    short.sort(key=lambda each: by_place[each[0].point.index])
    asks = known.fitting([longer(one, seconds, known.trials) for one, seconds in short], reserve)
    if asks:
        return Step("send", "the promising ones longer", asks)
    # Of a class whose best ran whole, none.
    races = [each for each in known.classes(left) if not each[0].whole]
    near = [one for each in races for one in open_ones(each, known.rules.objective)]
    asks = known.fitting([once_more(one, known.trials) for one in near], reserve)
    return Step("send", "repeats, for two or more are near each other", asks) if asks else None


def _verify(known: Known) -> Step | None:
    """The best of each class as the job file has it; of all, where none is evaluated. Then repeats
    of whatever ran whole and is near the best."""
    left, _ = _finalists(known)
    leaders = [members[0] for members in known.classes(left)]
    missing = [one for one in leaders if not one.whole]
    asks = known.fitting([_ask_whole(one, known.trials) for one in missing])
    if asks:
        return Step("send", "the best as the job file has them, with their quality", asks)
    whole = [one for one in left if one.whole]
    near = [] if missing or not whole else open_ones(whole, known.rules.objective)
    asks = known.fitting([_ask_whole(one, known.trials) for one in near])
    return Step("send", "repeats, for the best are near each other", asks) if asks else None


def _ask_whole(one: Figure, trials: Sequence[Trial]) -> Ask:
    return Ask(one.point.index, None, repeats(one.point.index, None, trials))


def _done(known: Known) -> Step:
    left, _ = _finalists(known)
    if not left:
        return Step("done", "no point is left: those that ran at all failed")
    best = left[0]
    if best.whole:
        return Step("done", _unjudged(known, left), chosen=best.point.index, verified=True)
    needed = known.price([_ask_whole(best, known.trials)]) or 0.0
    why = (
        f"the budget has no room for the whole run of {best.point.label}: about {needed:.2g} "
        f"core-hours, {max(known.left_h, 0.0):.2g} are left"
    )
    chosen = next((one for one in left if one.whole), best)
    return Step("done", why, chosen=chosen.point.index, verified=chosen.whole)


def _unjudged(known: Known, left: Sequence[Figure]) -> str:
    """Nothing where the best of each class was evaluated."""
    leaders = [members[0] for members in known.classes(left)]
    missing = [one.point.label for one in leaders if not one.whole]
    if not missing:
        return ""
    return f"the budget has no room to evaluate another model, as of {missing[0]}: it may be better"


# Of the results folder, behind the job's own name.
SUFFIX: Final = "-tune"


def job_of(path: Path, settings: list[str]) -> JobSpec:
    """The job file's settings, under the name of its tuning. Raises UsageError."""
    job = with_absolute_site(load_job(path, settings), path.parent)
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
    worse = worse_models([one for _, one in whole])
    return frozenset(classes[point] for point, one in whole if one.key in worse)


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
        unsound = unsound_trials(self.grid, select_whole_runs(self.grid, trials, rows))
        evaluates = self.grid.job.training.evaluation != "none"
        return trials, Rules(self.objective, self.core_hours, evaluates, frozenset(unsound))

    def select(self, known: Known) -> Step:
        return select_runs(known)
