"""Select the next runs of a tuning: successive halving within classes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median
from typing import Any, Final, Literal

from hpcncf.errors import UsageError
from hpcncf.job.plan import Plan, Run, expand_job, grid_points
from hpcncf.job.spec import JobSpec
from hpcncf_analysis.advice.judge import within_price_limit

Objective = Literal["knee", "fastest", "cheapest"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("knee", "fastest", "cheapest")
Fate = Literal["open", "under way", "failed", "completed"]


@dataclass(frozen=True)
class Point:
    """A configuration of the grid."""

    index: int
    """Its place in the grid."""
    label: str
    cores: int
    gpus: float
    batch: int
    """Positives of an optimiser step over all ranks."""
    whole_steps: int
    """Optimiser steps of a run as the job file asks for it."""
    quality: Hashable
    """Points with equal ones train the same model, however fast."""
    values: frozenset[str] = frozenset()
    """What the grid sets here, as `engine=native`."""
    gpu_hour: float = 0.0
    """Core-hours that an hour of one of its GPUs counts for; 0: GPUs are compared by themselves,
    and the budget does not count them."""

    @property
    def charged(self) -> float:
        """Core-hours of the budget that an hour of it takes."""
        return self.cores + self.gpu_hour * self.gpus

    @property
    def price(self) -> float:
        """Of an hour, as points are compared: what is charged, or where GPUs have no price in
        core-hours, GPU-hours. A grid has one of the two (`grid.Grid.priced`)."""
        return float(self.gpus) if self.gpus and not self.gpu_hour else self.charged


@dataclass(frozen=True)
class Ask:
    """One run: a point, cut after so many steps; None: whole, as the job file has it."""

    point: int
    steps: int | None
    repeat: int


@dataclass(frozen=True)
class Trial:
    """What came of an ask. Figures are None unless it is completed."""

    ask: Ask
    fate: Fate
    core_hours: float = 0.0
    """Charged for all its attempts so far."""
    epoch_s: float | None = None
    """Seconds of an epoch's training, extrapolated where the run was cut."""
    training_s: float = 0.0
    elapsed_s: float = 0.0
    apart_s: float = 0.0
    """Evaluation and checkpoints."""
    steps: int = 0
    hr10: float | None = None
    reason: str = ""
    """Why it failed."""

    @property
    def startup_s(self) -> float:
        """All but training, evaluation and checkpoints."""
        return max(self.elapsed_s - self.training_s - self.apart_s, 0.0)

    @property
    def whole(self) -> bool:
        return self.ask.steps is None


@dataclass(frozen=True)
class Step:
    """What to do now."""

    kind: Literal["send", "wait", "done"]
    why: str
    asks: tuple[Ask, ...] = ()
    """The new runs of `send`; those that are open are sent again with them."""
    chosen: int | None = None
    """Of `done`: the point; None where none could be measured."""
    verified: bool = False
    """Of `done`: whether the chosen one ran as the job file has it."""


# Runs of less than this share of a point's longest training are less exact than that one.
AS_LONG: Final = 0.5


@dataclass(frozen=True)
class Figure:
    """A point's seconds for an epoch: the median over its longest runs, and their range."""

    point: Point
    epoch_s: float
    low: float
    high: float
    trained_s: float
    """Training of the longest run."""
    runs: int
    """That the median is of."""
    whole: bool
    """Whether one of them is as the job file has it: none can be longer."""

    @property
    def cost(self) -> tuple[float, float]:
        """Of an epoch: its price, and for two of equal ones the core-seconds."""
        return self.price, self.point.cores * self.epoch_s

    @property
    def price(self) -> float:
        return self.point.price * self.epoch_s


def figures_of_points(points: Sequence[Point], trials: Iterable[Trial]) -> dict[int, Figure]:
    """Of those with a completed trial and none that failed."""
    grouped: dict[int, list[Trial]] = defaultdict(list)
    failed = set[int]()
    for trial in trials:
        if trial.fate == "failed":
            failed.add(trial.ask.point)
        if trial.fate == "completed" and trial.epoch_s:
            grouped[trial.ask.point].append(trial)
    return {
        point.index: _figure(point, grouped[point.index])
        for point in points
        if point.index in grouped and point.index not in failed
    }


def _figure(point: Point, trials: Sequence[Trial]) -> Figure:
    most = max(trial.training_s for trial in trials)
    longest = [trial for trial in trials if trial.training_s >= AS_LONG * most]
    times = [trial.epoch_s or inf for trial in longest]
    whole = any(trial.whole for trial in trials)
    return Figure(point, median(times), min(times), max(times), most, len(times), whole)


def best_first(figures: Iterable[Figure], objective: Objective) -> list[Figure]:
    """By the objective; with `knee`, those worth their cost by time, then the others by cost."""
    found = list(figures)
    if objective == "cheapest":
        return sorted(found, key=lambda one: (one.cost, one.point.index))
    by_time = sorted(found, key=lambda one: (one.epoch_s, one.cost, one.point.index))
    if objective == "fastest":
        return by_time
    worth = within_price_limit(by_time, lambda one: one.price)
    rest = sorted((one for one in found if one not in worth), key=lambda one: one.price)
    return worth + rest


def compared(one: Figure, objective: Objective) -> tuple[float, float]:
    """The range of what the objective compares."""
    if objective == "cheapest":
        return one.low * one.point.price, one.high * one.point.price
    return one.low, one.high


def startup_s(trials: Iterable[Trial], otherwise: float = 0.0) -> float:
    known = [trial.startup_s for trial in trials if trial.fate == "completed"]
    return median(known) if known else otherwise


def core_hours(
    ask: Ask, points: Mapping[int, Point], figures: Mapping[int, Figure], trials: Sequence[Trial]
) -> float | None:
    """What a run will be charged; where its point has no figure, each positive as the slowest of
    those completed took, and None where none is."""
    point, figure = points[ask.point], figures.get(ask.point)
    done = [trial for trial in trials if trial.fate == "completed" and trial.ask.point in points]
    if not done:
        return None
    steps = point.whole_steps if ask.steps is None else ask.steps
    each_s = step_s(figure, done) if figure else point.batch * _slowest(points, done)
    seconds = startup_s(done) + steps * each_s
    if ask.steps is None:
        seconds += max((trial.apart_s for trial in done if trial.whole), default=0.0)
    return point.charged * seconds / 3600


def _slowest(points: Mapping[int, Point], done: Iterable[Trial]) -> float:
    """Seconds of a positive."""
    times = [
        one.training_s / (one.steps * points[one.ask.point].batch) for one in done if one.steps
    ]
    return max(times, default=0.0)


def step_s(figure: Figure, trials: Iterable[Trial]) -> float:
    """By the point's longest run."""
    own = [trial for trial in trials if trial.ask.point == figure.point.index and trial.steps]
    longest = max(own, key=lambda trial: trial.training_s)
    return longest.training_s / longest.steps


# Jamieson and Talwalkar 2016; a third is kept each time, as in Hyperband (Li et al. 2018).
# Length is
# seconds of training, not epochs: what is compared is speed, and a fast engine needs more steps
# to
# show its own. Nobody wins on less than the finalists had.

KEPT: Final = 3
"""One of so many goes on."""
FINALISTS: Final = 3
# The first race lasts as long as a run's start, which is paid in any case, and never less.
SHORTEST_S: Final = 2.0
LONG_ENOUGH: Final = 0.8
# What a first glance saw so many times slower than the best is not looked at again.
FAR: Final = 3.0
# Nearer than that, two points with a run each are not distinguished.
CLOSE: Final = 1.1
REPEATS: Final = 3
# A cut run of so much of the whole may as well be whole, and be evaluated.
AS_WHOLE: Final = 0.8


def finalists(
    figures: Sequence[Figure], objective: Objective, first_s: float
) -> tuple[list[Figure], list[tuple[Figure, float]]]:
    """Who is left of a class, and those of them that must train longer first, with the seconds."""
    left, target = best_first(figures, objective), first_s
    while len(left) > 1:
        left = _kept(left, objective)
        short = [one for one in left if _short(one, target)]
        if short or len(left) <= FINALISTS:
            return left, [(one, target) for one in short]
        left, target = best_first(left, objective), target * KEPT
    return left, []


def _short(one: Figure, target: float) -> bool:
    return not one.whole and one.trained_s < LONG_ENOUGH * target


def _kept(best: Sequence[Figure], objective: Objective) -> list[Figure]:
    """With the cheapest: by it is judged which others are worth their cost."""
    number = len(best) if len(best) <= FINALISTS else max(ceil(len(best) / KEPT), 2)
    kept = [one for one in best[:number] if not _far(one, best[0], objective)]
    cheapest = min(best, key=lambda one: one.price)
    return kept if objective != "knee" or cheapest in kept else [*kept, cheapest]


def _far(one: Figure, best: Figure, objective: Objective) -> bool:
    return compared(one, objective)[0] > FAR * compared(best, objective)[1]


def open_ones(best: Sequence[Figure], objective: Objective) -> list[Figure]:
    """Those that may be the best and lack repeats: the first of `best`, and who comes near it."""
    rivals = [one for one in best[1:] if is_open(best[0], one, objective)]
    several = [best[0], *rivals] if rivals else []
    return [one for one in several if one.runs < REPEATS]


def is_open(one: Figure, other: Figure, objective: Objective) -> bool:
    """Whether their repeats overlap; where both ran once, whether they are near each other."""
    (low, high), (other_low, other_high) = compared(one, objective), compared(other, objective)
    near = CLOSE if one.runs == other.runs == 1 else 1.0
    return low <= other_high * near and other_low <= high * near


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


def repeats(point: int, steps: int | None, trials: Sequence[Trial]) -> int:
    """The number of runs of that length there are already: the next one's repeat."""
    return sum((trial.ask.point, trial.ask.steps) == (point, steps) for trial in trials)


# What a run that is cut short does not need. Like its length, that makes it another run than the
# whole one, with a folder of its own.
CUT: Final = {"training.evaluation": "none", "training.checkpoint_every": 0}
# These change how fast a model is trained, not which one.
SPEED_ONLY: Final = {
    *("device", "backend", "threads", "engine", "loader", "num_workers", "adam", "sparse"),
    *("parallel", "bucket_mb", "gradient_as_bucket_view", "static_graph", "compile", "cuda_graph"),
    *("accumulate", "global_batch_size", "batch_size_per_rank", "checkpoint_every"),
    *(
        "checkpoint_every_min",
        "log_every",
        "interop_threads",
        "omp_wait_policy",
        "pin",
        "cudnn_benchmark",
    ),
    *("workers", "persistent_workers", "prefetch_factor", "collate", "pin_memory"),
    *("non_blocking", "prefetch_to_device", "profile", "profile_steps", "profile_ranks"),
    *("profile_rate", "profile_native", "profile_subprocesses"),
}


@dataclass(frozen=True)
class Grid:
    job: JobSpec
    keys: Mapping[str, str | None]
    """Data path -> what the prepared folder calls its content."""
    settings: tuple[dict[str, Any], ...]
    """Of each point, dotted."""
    points: tuple[Point, ...]
    datasets: Mapping[str, str]
    """Data path -> format of the prepared data."""
    left_out: tuple[str, ...] = ()
    """Points that cannot run here, with the reason."""

    def run(self, ask: Ask) -> Run:
        """As the job file has it, but for its length and what a cut run does not need."""
        cut = {} if ask.steps is None else {**CUT, "training.max_steps": ask.steps}
        return build_run(
            self.job, self.settings[ask.point] | cut, ask.repeat, self.keys, self.datasets
        )

    def plan(self, asks: Sequence[Ask]) -> Plan:
        runs = {run.id: run for run in map(self.run, asks)}
        return Plan(job=self.job.name, runs=list(runs.values()))

    def without(self, reasons: Mapping[int, str]) -> Grid:
        """The same, some points left out for a reason each."""
        kept = tuple(point for point in self.points if point.index not in reasons)
        gone = [point for point in self.points if point.index in reasons]
        gone_points = tuple(f"{point.label}: {reasons[point.index]}" for point in gone)
        return replace(self, points=kept, left_out=self.left_out + gone_points)

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


def build_run(
    job: JobSpec,
    settings: Mapping[str, Any],
    repeat: int,
    keys: Mapping[str, str | None],
    datasets: Mapping[str, str],
) -> Run:
    alone = {"grid": {}, "points": [dict(settings)], "exclude": [], "repeats": repeat + 1}
    runs = expand_job(job.model_copy(update=alone), keys, datasets).runs
    return next(run for run in runs if run.repeat == repeat)


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


# First every point a few steps; then, among points that train the same model, the promising
# ones
# longer; the best of each such class once whole, for its quality; and repeats where two are
# near each
# other. Nothing but the trials is remembered: the same trials give the same answer, always.

# A first glance: so many positives, but not fewer steps than that, a tenth of which is warm-up.
GLANCE: Final = 20_000
FEWEST_STEPS: Final = 10
# All points at once only where they fit though each cost so many times the dearest seen so far.
SAFETY: Final = 3
# Of the budget, kept from first glances: some points unseen are better than none that ran whole.
RESERVED: Final = 0.3


@dataclass(frozen=True)
class Rules:
    objective: Objective
    core_hours: float
    """The budget."""
    judges: bool = True
    """Whether whole runs are evaluated; else no class is known to be worse than another."""
    unsound: frozenset[Hashable] = frozenset()
    """Classes whose quality is worse than chance explains."""


@dataclass(frozen=True)
class Known:
    """Results of the trials, computed once."""

    points: Sequence[Point]
    trials: Sequence[Trial]
    rules: Rules
    of: dict[int, Figure]
    left_h: float
    """Core-hours of the budget that are left."""

    def classes(self, of: Sequence[Figure]) -> list[list[Figure]]:
        """Those that train the same model together, in the order given; all, where none is
        evaluated."""
        grouped: dict[Hashable, list[Figure]] = {}
        for one in of:
            key = one.point.quality if self.rules.judges else None
            grouped.setdefault(key, []).append(one)
        return list(grouped.values())

    def price(self, asks: Sequence[Ask]) -> float | None:
        by_index = {point.index: point for point in self.points}
        each = [core_hours(ask, by_index, self.of, self.trials) for ask in asks]
        known = [hours for hours in each if hours is not None]
        return sum(known) if len(known) == len(each) else None

    def fitting(self, asks: Sequence[Ask], reserve_h: float = 0.0) -> tuple[Ask, ...]:
        """Those that the budget has room for, the first ones first."""
        left, found = self.left_h - reserve_h, list[Ask]()
        for ask in asks:
            hours = self.price([ask]) or 0.0
            if hours <= left:
                found.append(ask)
                left -= hours
        return tuple(found)


def next_step(points: Sequence[Point], trials: Sequence[Trial], rules: Rules) -> Step:
    """What to do now. Trials that are open, but for those under way, are sent again first."""
    if any(trial.fate == "under way" for trial in trials):
        return Step("wait", "runs are under way")
    known = _known(points, trials, rules)
    if known.left_h > 0 and any(trial.fate == "open" for trial in trials):
        return Step("send", "runs that were asked for and did not end are sent again")
    return _glances(known) or _races(known) or _verify(known) or _done(known)


def _known(points: Sequence[Point], trials: Sequence[Trial], rules: Rules) -> Known:
    left_h = rules.core_hours - sum(trial.core_hours for trial in trials)
    return Known(points, trials, rules, figures_of_points(points, trials), left_h)


def enough(points: Sequence[Point], trials: Sequence[Trial], rules: Rules) -> float | None:
    """Core-hours of a budget that has room for a look at every point and for the best of each class
    whole, by what was measured; None where nothing was. Races and repeats may take more."""
    known = _known(points, trials, rules)
    seen = {trial.ask.point for trial in trials}
    looks = known.price([_glance(point) for point in points if point.index not in seen])
    left, _ = _finalists(known)
    leaders = [members[0] for members in known.classes(left) if not members[0].whole]
    whole = known.price([_ask_whole(one, trials) for one in leaders])
    if looks is None or whole is None:
        return None
    spent = rules.core_hours - known.left_h
    return max((spent + looks) / (1 - RESERVED), spent + looks + whole)


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
    near = [one for each in known.classes(left) for one in _near(each, known)]
    asks = known.fitting([once_more(one, known.trials) for one in near], reserve)
    return Step("send", "repeats, for two or more are near each other", asks) if asks else None


def _near(members: Sequence[Figure], known: Known) -> list[Figure]:
    """Of one class, those to repeat; none once the best of it ran whole."""
    if members[0].whole:
        return []
    return open_ones(members, known.rules.objective)


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
