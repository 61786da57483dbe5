"""Successive halving among points that train the same model: the promising ones run longer. Pure.

Jamieson and Talwalkar 2016; a third is kept each time, as in Hyperband (Li et al. 2018). Length is
seconds of training, not epochs: what is compared is speed, and a fast engine needs more steps to
show its own. Nobody wins on less than the finalists had.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

from hpcncf.tune.figures import Figure, best_first, compared, step_s
from hpcncf.tune.values import Ask, Objective, Trial

KEPT: Final = 3
"""One of so many goes on."""
FINALISTS: Final = 3
# The first race lasts as long as a run's start, which is paid in any case, and never less.
SHORTEST_S: Final = 2.0
LONG_ENOUGH: Final = 0.8
# What a first glance saw so many times slower than the best is not looked at again.
FAR: Final = 3.0
# Nearer than that, two points with a run each are not told apart.
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
