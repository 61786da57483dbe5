"""The search of a tuning: which trials come next, and when the best point is known.

First every candidate a little; then, among points that train the same model, the promising ones
longer; the best of each such class once whole, for its quality; and repeats if two are near. What
a trial is, and which points are candidates, its source says: a job file (`job_file`) or a program
(`program`), whose trials have one length and train one model.

What comes next is decided by the trials alone: the same trials give the same answer, always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final, Literal

from hpcncf.tune.trials import (
    Ask,
    Figure,
    Known,
    Objective,
    Point,
    best_first,
    compared,
    open_ones,
    startup_s,
)

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
LISTED: Final = 6
"""Points that a sentence names."""


@dataclass(frozen=True)
class Step:
    """The next step of a tuning: to send runs, to wait for them, or to end with a choice."""

    kind: Literal["send", "wait", "done"]
    why: str
    asks: tuple[Ask, ...] = ()
    """The new runs of `send`; those that are open are sent again with them."""
    more: tuple[dict[str, Any], ...] = ()
    """Settings of points that the asks add to the grid."""
    chosen: int | None = None
    """Of `done`: the point; None if none could be measured."""
    verified: bool = False
    """Of `done`: whether the chosen one ran as the job file has it."""


@dataclass(frozen=True)
class Candidates:
    """Points that a tuning tries next, each with a trial, and the reason for them."""

    why: str
    points: Sequence[Point]
    asks: tuple[Ask, ...]
    """A trial of each point, in the same order."""
    settings: tuple[dict[str, Any], ...] = ()
    """Settings of each point, if they are new to the grid."""
    reserve_h: float = 0.0
    """Core-hours of the budget that they must leave."""


class PointSource:
    """Source of the points that a tuning tries; its subclasses are a job file and a program."""

    def candidates(self, known: Known, /) -> Candidates | None:
        """Points that must be tried before any is chosen; None if there are no more."""
        raise NotImplementedError

    def choose(self, known: Known, finalists: Sequence[Figure], /) -> Figure:
        """The point to recommend; `finalists` are sorted, best first."""
        raise NotImplementedError

    def doubtful(self, _: Known, best: Figure, /) -> list[Figure]:  # noqa: ARG002
        """Points to repeat once even if no other point is nearly as good as the best."""
        return []

    def rivals(self, _: Known, chosen: Figure, /) -> Candidates | None:  # noqa: ARG002
        """Further points to try before the choice is final; None if there are none."""
        return None


def next_step(known: Known, source: PointSource) -> Step:
    """Decide the next step: wait, send trials, or end with a choice."""
    if any(trial.fate == "under way" for trial in known.trials):
        return Step("wait", "runs are under way")
    if known.left_h > 0 and any(trial.fate == "open" for trial in known.trials):
        return Step("send", "runs that were asked for and did not end are sent again")
    candidates = source.candidates(known)
    step = (candidates and _try(known, candidates)) or _races(known)
    if step:
        return step
    left, _ = find_finalists(known)
    if not left:
        reasons = [trial.reason for trial in known.trials if trial.reason]
        return Step("done", f"{reasons[0]}: no point is left" if reasons else "nothing was tried")
    missing = unevaluated(known, left)
    if asks := known.fitting([known.ask(one.point) for one in missing]):
        return Step("send", "the best as the job file has them, with their quality", asks)
    repeats = [] if missing else _repeats(known, left, source)
    if asks := known.fitting([known.ask(one.point) for one in repeats]):
        return Step("send", "repeats, for the best are near each other", asks)
    chosen = source.choose(known, left)
    rivals = None if candidates or repeats else source.rivals(known, chosen)
    if rivals and (step := _try(known, rivals)):
        return step
    lacking, left_h = "", f"{max(known.left_h, 0.0):.2g} core-hours are left"
    if not left[0].whole:
        needed = known.price([known.ask(left[0].point)]) or 0.0
        label = left[0].point.label
        lacking = f"for the whole run of {label}: about {needed:.2g} core-hours, {left_h}"
    elif missing:
        lacking = f"to evaluate another model, as of {missing[0].point.label}: it may be better"
    elif wanted := candidates or rivals:
        lacking = f"for {_list([point.label for point in wanted.points])}: {left_h}"
    elif repeats:
        lacking = f"for repeats of {_list([one.point.label for one in repeats])}: {left_h}"
    why = lacking and f"the budget has no room {lacking}"
    return Step("done", why, chosen=chosen.point.index, verified=chosen.whole)


def _try(known: Known, found: Candidates) -> Step | None:
    """Build the step of the candidates that fit into the budget; None if none fits."""
    points = [*known.points, *found.points] if found.settings else known.points
    fit = replace(known, points=points).fitting(found.asks, found.reserve_h)
    if not fit:
        return None
    if not found.settings:
        return Step("send", found.why, fit)
    at = [found.asks.index(ask) for ask in fit]
    labels = _list([found.points[one].label for one in at])
    first = len(known.points)  # new points must follow those there without a gap
    asks = tuple(replace(ask, point=first + number) for number, ask in enumerate(fit))
    settings = tuple(found.settings[one] for one in at)
    return Step("send", f"{found.why}: {labels}", asks, settings)


def _list(labels: Sequence[str]) -> str:
    more = len(labels) - LISTED
    return "; ".join(labels[:LISTED]) + f" and {more} more" * (more > 0)


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
    number = FINALISTS
    # Points that ran whole cannot be told apart by longer runs, only by repeats.
    if len(best) > FINALISTS and not all(one.whole for one in best):
        number = max(ceil(len(best) / KEPT_ONE_IN), 2)
    far = FAR_BEHIND * compared(best[0], objective)[1]
    kept = [one for one in best[:number] if compared(one, objective)[0] <= far]
    cheapest = min(best, key=lambda one: one.price)
    return kept if objective != "knee" or cheapest in kept else [*kept, cheapest]


def find_finalists(known: Known) -> tuple[list[Figure], list[tuple[Figure, float]]]:
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
    """Build the step of longer runs, or of repeats of cut ones; None if none is needed or fits."""
    left, short = find_finalists(known)
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


def unevaluated(known: Known, left: Sequence[Figure]) -> list[Figure]:
    """List the best point of each class that has not completed a whole run."""
    return [members[0] for members in known.classes(left) if not members[0].whole]


def _repeats(known: Known, left: Sequence[Figure], source: PointSource) -> list[Figure]:
    """List points near the best whose whole runs lack repeats, and the source's doubtful ones."""
    whole = [one for one in left if one.whole]
    near = open_ones(whole, known.rules.objective)
    return [*near, *(one for one in source.doubtful(known, whole[0]) if one not in near)]
