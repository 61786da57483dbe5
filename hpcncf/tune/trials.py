"""Trials of a tuning, and what follows from them: figures, their order, what is left to spend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import median
from typing import Final, Literal

from hpcncf.records.schema import Integer
from hpcncf_analysis.advice.judge import within_price_limit
from hpcncf_analysis.significance import Ratio, Verdict, compare_times

Objective = Literal["knee", "fastest", "cheapest"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("knee", "fastest", "cheapest")
Fate = Literal["open", "under way", "failed", "completed"]


@dataclass(frozen=True)
class Point:
    """A configuration: of a job file's grid, or of a program's cores and remedies."""

    index: int
    """Its place in the grid."""
    label: str
    cores: int
    gpus: float = 0.0
    batch: int = 1
    """Positives of an optimiser step over all ranks."""
    whole_steps: int = 1
    """Optimiser steps of a run as the job file asks for it."""
    quality: Hashable = None
    """Points with equal ones train the same model, however fast."""
    values: frozenset[str] = frozenset()
    """What is set here, as `engine=native`."""

    @property
    def price(self) -> float:
        """Hourly price by which points are compared: number of GPUs, or of cores without GPUs."""
        return self.gpus or float(self.cores)


@dataclass(frozen=True)
class Ask:
    """One run that a tuning asks for: a point, for `steps` steps, or whole if that is None."""

    point: Integer
    steps: Integer | None
    repeat: Integer


@dataclass(frozen=True)
class Trial:
    """The result of an ask. Figures are None unless it is completed."""

    ask: Ask
    fate: Fate
    core_hours: float = 0.0
    """Charged for all its attempts so far."""
    epoch_s: float | None = None
    """Seconds of an epoch's training, extrapolated if the run was cut; of a program, of a step."""
    training_s: float = 0.0
    elapsed_s: float = 0.0
    apart_s: float = 0.0
    """Evaluation and checkpoints."""
    steps: int = 0
    hr10: float | None = None
    error: float = 0.0
    """Half the width of the 95 % interval of its own steps, relative; 0: not known."""
    reason: str = ""
    """Why it failed."""
    disturbed: bool = False
    """Whether neighbours used its cores."""
    cores_used: float | None = None
    memory_mib: float | None = None
    losses: tuple[float | None, ...] = ()
    """Of a program's first steps."""
    applied: tuple[tuple[str, str], ...] = ()
    """Remedies of a program, each with what it was applied to."""
    not_applied: tuple[str, ...] = ()

    @property
    def startup_s(self) -> float:
        """Seconds outside training, evaluation and checkpoints, at least 0."""
        return max(self.elapsed_s - self.training_s - self.apart_s, 0.0)

    @property
    def whole(self) -> bool:
        return self.ask.steps is None


# Runs of less than this share of a point's longest training are less exact than that one.
AS_LONG: Final = 0.5


@dataclass(frozen=True)
class Figure:
    """A point's seconds for an epoch: the median over its longest runs, and their range."""

    point: Point
    times: tuple[float, ...]
    """Seconds of an epoch in each of its longest runs; of a program, of a step."""
    trained_s: float
    """Training of the longest run."""
    whole: bool
    """Whether one of them is as the job file has it: none can be longer."""
    error: float = 0.0
    """Half the interval of a single run by its own steps, relative."""

    @cached_property
    def epoch_s(self) -> float:
        return median(self.times)

    @property
    def low(self) -> float:
        return min(self.times) * max(0.0, 1 - self.error)

    @property
    def high(self) -> float:
        return max(self.times) * (1 + self.error)

    @property
    def runs(self) -> int:
        return len(self.times)

    @property
    def cost(self) -> tuple[float, float]:
        """Price of an epoch, then its core-seconds as the tie-breaker."""
        return self.price, self.point.cores * self.epoch_s

    @property
    def price(self) -> float:
        return self.point.price * self.epoch_s

    def weight(self, objective: Objective) -> float:
        """Factor from seconds to what the objective compares."""
        return self.point.price if objective == "cheapest" else 1.0


def figures_of_points(points: Sequence[Point], trials: Iterable[Trial]) -> dict[int, Figure]:
    """Map the index of each point to its figure.

    Only points with a completed trial and without a failed one are included.
    """
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
    times = tuple(trial.epoch_s or inf for trial in longest)
    whole = any(trial.whole for trial in trials)
    return Figure(point, times, most, whole, longest[0].error if len(longest) == 1 else 0.0)


def best_first(figures: Iterable[Figure], objective: Objective) -> list[Figure]:
    """Sort figures by the objective, best first.

    With `knee`, points whose speed is worth their cost come first, by time; the others follow,
    by cost.
    """
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
    """Lowest and highest value that the objective compares: an epoch's seconds or its cost."""
    factor = one.weight(objective)
    return one.low * factor, one.high * factor


# Nearer than that, two points with a run each are not distinguished.
CLOSE: Final = 1.1
REPEATS: Final = 3


def open_ones(best: Sequence[Figure], objective: Objective) -> list[Figure]:
    """List the candidates for the best point that still lack repeats.

    `best` is sorted, best first. Candidates are its first entry and every entry whose
    difference from the first is not settled; the list is empty if there is no rival.
    """
    rivals = [one for one in best[1:] if is_open(best[0], one, objective)]
    several = [best[0], *rivals] if rivals else []
    return [one for one in several if one.runs < REPEATS]


def compare_figures(baseline: Figure, candidate: Figure, objective: Objective) -> Ratio:
    """Compare the candidate's repeats with the baseline's by cost (`cheapest`) or time."""
    before, after = (
        [one.weight(objective) * seconds for seconds in one.times] for one in (baseline, candidate)
    )
    return compare_times(before, after)


def is_open(one: Figure, other: Figure, objective: Objective) -> bool:
    """Whether more repeats are needed to tell which of two points is better.

    True if enough repeats show no difference. With too few repeats, true if their ranges
    overlap, or if two single runs are within a factor of `CLOSE`.
    """
    verdict = compare_figures(one, other, objective).verdict
    if verdict is not Verdict.TOO_FEW:
        return not verdict.is_difference
    (low, high), (other_low, other_high) = compared(one, objective), compared(other, objective)
    near = CLOSE if one.runs == other.runs == 1 else 1.0
    return low <= other_high * near and other_low <= high * near


@dataclass(frozen=True)
class Rules:
    objective: Objective
    core_hours: float
    """The budget."""
    judges: bool = True
    """Whether whole runs are evaluated; else no class is known to be worse than another."""
    unsound: frozenset[Hashable] = frozenset()
    """Classes whose quality is worse than chance explains."""


# A cut run of so much of the whole may as well be whole, and be evaluated.
AS_WHOLE: Final = 0.8


@dataclass(frozen=True)
class Known:
    """The trials, and what follows from them."""

    points: Sequence[Point]
    trials: Sequence[Trial]
    rules: Rules

    @cached_property
    def figures(self) -> dict[int, Figure]:
        """Figures of all measured points, by point index."""
        return figures_of_points(self.points, self.trials)

    @property
    def spent_h(self) -> float:
        return sum(trial.core_hours for trial in self.trials)

    @property
    def left_h(self) -> float:
        """Remaining core-hours of the budget, negative if it is exceeded."""
        return self.rules.core_hours - self.spent_h

    def trials_of(self, point: int) -> list[Trial]:
        return [trial for trial in self.trials if trial.ask.point == point]

    def is_disturbed(self, figure: Figure) -> bool:
        """Whether neighbours used the cores of a point in most of its trials."""
        own = self.trials_of(figure.point.index)
        return 2 * sum(trial.disturbed for trial in own) > len(own)

    @property
    def seen(self) -> set[int]:
        """Indices of all points with at least one trial, whatever its state."""
        return {trial.ask.point for trial in self.trials}

    def classes(self, figures: Sequence[Figure]) -> list[list[Figure]]:
        """Group figures by the model that their points train, in the given order.

        All form one group if runs are not evaluated.
        """
        grouped: dict[Hashable, list[Figure]] = {}
        for one in figures:
            key = one.point.quality if self.rules.judges else None
            grouped.setdefault(key, []).append(one)
        return list(grouped.values())

    def ask(self, point: Point, steps: int | None = None) -> Ask:
        """Build the point's next run of `steps` optimizer steps, numbered as a repeat.

        It is a whole run if `steps` is None or at least `AS_WHOLE` of the whole run's steps.
        """
        if steps is not None and steps >= AS_WHOLE * point.whole_steps:
            steps = None
        asked = [(trial.ask.point, trial.ask.steps) for trial in self.trials]
        return Ask(point.index, steps, asked.count((point.index, steps)))

    def longest(self, point: Point) -> Trial:
        """Return the trial of a measured point with the most seconds of training."""
        own = [one for one in self.trials_of(point.index) if one.steps]
        return max(own, key=lambda trial: trial.training_s)

    def step_s(self, point: Point) -> float:
        longest = self.longest(point)
        return longest.training_s / longest.steps

    @cached_property
    def completed(self) -> list[Trial]:
        known = {point.index for point in self.points}
        return [
            trial for trial in self.trials if trial.fate == "completed" and trial.ask.point in known
        ]

    def core_hours(self, ask: Ask) -> float | None:
        """Predict the core-hours of one run; None before any run completed.

        For a point without a figure, a positive is assumed to take as long as in the slowest
        completed run.
        """
        points = {point.index: point for point in self.points}
        point, done = points[ask.point], self.completed
        if not done:
            return None
        if ask.point in self.figures:
            each_s = self.step_s(point)
        else:
            of_positive = (
                one.training_s / (one.steps * points[one.ask.point].batch)
                for one in done
                if one.steps
            )
            each_s = point.batch * max(of_positive, default=0.0)
        steps = point.whole_steps if ask.steps is None else ask.steps
        seconds = startup_s(done) + steps * each_s
        if ask.steps is None:
            seconds += max((trial.apart_s for trial in done if trial.whole), default=0.0)
        return point.cores * seconds / 3600

    def price(self, asks: Sequence[Ask]) -> float | None:
        """Predict the core-hours of all given runs together; None before any run completed."""
        prices = [self.core_hours(ask) for ask in asks]
        return None if None in prices else sum(filter(None, prices))

    def fitting(self, asks: Sequence[Ask], reserve_h: float = 0.0) -> tuple[Ask, ...]:
        """Select the runs that fit into the budget less `reserve_h`, in the given order."""
        left, found = self.left_h - reserve_h, list[Ask]()
        for ask in asks:
            hours = self.core_hours(ask) or 0.0
            if hours <= left:
                found.append(ask)
                left -= hours
        return tuple(found)


def startup_s(trials: Iterable[Trial]) -> float:
    known = [trial.startup_s for trial in trials if trial.fate == "completed"]
    return median(known) if known else 0.0
