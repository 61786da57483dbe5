"""What the trials say of each point: its epoch, what runs of it cost, and which is best. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final

from hpcncf.tune.values import Ask, Objective, Point, Trial
from hpcncf_analysis.advice.worth import worth_it

# Runs of less than this share of a point's longest training tell less than that one.
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


def of_points(points: Sequence[Point], trials: Iterable[Trial]) -> dict[int, Figure]:
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
    told = [trial.epoch_s or inf for trial in longest]
    whole = any(trial.whole for trial in trials)
    return Figure(point, median(told), min(told), max(told), most, len(told), whole)


def best_first(figures: Iterable[Figure], objective: Objective) -> list[Figure]:
    """By the objective; with `knee`, those worth their cost by time, then the others by cost."""
    found = list(figures)
    if objective == "cheapest":
        return sorted(found, key=lambda one: (one.cost, one.point.index))
    by_time = sorted(found, key=lambda one: (one.epoch_s, one.cost, one.point.index))
    if objective == "fastest":
        return by_time
    worth = worth_it(by_time, lambda one: one.price)
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
    told = [one.training_s / (one.steps * points[one.ask.point].batch) for one in done if one.steps]
    return max(told, default=0.0)


def step_s(figure: Figure, trials: Iterable[Trial]) -> float:
    """By the point's longest run."""
    own = [trial for trial in trials if trial.ask.point == figure.point.index and trial.steps]
    longest = max(own, key=lambda trial: trial.training_s)
    return longest.training_s / longest.steps
