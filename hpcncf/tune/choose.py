"""The next runs of a tuning, from what the trials so far tell. Pure.

First every point a few steps; then, among points that train the same model, the promising ones
longer; the best of each such class once whole, for its quality; and repeats where two are near each
other. Nothing but the trials is remembered: the same trials give the same answer, always.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from hpcncf.tune import figures, race
from hpcncf.tune.figures import Figure
from hpcncf.tune.values import Ask, Objective, Point, Step, Trial

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
    """Whether whole runs are evaluated; else no class can be told worse than another."""
    unsound: frozenset[Hashable] = frozenset()
    """Classes whose quality is worse than chance explains."""


@dataclass(frozen=True)
class Known:
    """What the trials tell, worked out once."""

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
        each = [figures.core_hours(ask, by_index, self.of, self.trials) for ask in asks]
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
    return _glances(known) or _races(known) or _whole_runs(known) or _done(known)


def _known(points: Sequence[Point], trials: Sequence[Trial], rules: Rules) -> Known:
    left_h = rules.core_hours - sum(trial.core_hours for trial in trials)
    return Known(points, trials, rules, figures.of_points(points, trials), left_h)


def enough(points: Sequence[Point], trials: Sequence[Trial], rules: Rules) -> float | None:
    """Core-hours of a budget that has room for a look at every point and for the best of each class
    whole, by what was measured; None where nothing was. Races and repeats may take more."""
    known = _known(points, trials, rules)
    seen = {trial.ask.point for trial in trials}
    looks = known.price([_glance(point) for point in points if point.index not in seen])
    left, _ = _finalists(known)
    leaders = [members[0] for members in known.classes(left) if not members[0].whole]
    whole = known.price([_whole(one, trials) for one in leaders])
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
    return race.cut(point.index, steps, point.whole_steps, [])


def _finalists(known: Known) -> tuple[list[Figure], list[tuple[Figure, float]]]:
    """Of all classes whose quality holds, best first; and who must train longer."""
    glances = [trial for trial in known.trials if trial.ask.repeat == 0]
    first_s = max(race.SHORTEST_S, figures.startup_s(glances[: len(known.points)]))
    left, short = list[Figure](), list[tuple[Figure, float]]()
    sound = [one for one in known.of.values() if one.point.quality not in known.rules.unsound]
    for members in known.classes(sound):
        kept, more = race.finalists(members, known.rules.objective, first_s)
        left, short = left + kept, short + more
    return figures.best_first(left, known.rules.objective), short


def _races(known: Known) -> Step | None:
    left, short = _finalists(known)
    if not left:
        return None
    reserve = known.price([_whole(left[0], known.trials)]) or 0.0
    by_place = {one.point.index: place for place, one in enumerate(left)}
    short.sort(key=lambda each: by_place[each[0].point.index])
    asks = known.fitting(
        [race.longer(one, seconds, known.trials) for one, seconds in short], reserve
    )
    if asks:
        return Step("send", "the promising ones longer", asks)
    near = [one for each in known.classes(left) for one in _near(each, known)]
    asks = known.fitting([race.once_more(one, known.trials) for one in near], reserve)
    return Step("send", "repeats, for two or more are near each other", asks) if asks else None


def _near(members: Sequence[Figure], known: Known) -> list[Figure]:
    """Of one class, those to repeat; none once the best of it ran whole."""
    if members[0].whole:
        return []
    return race.open_ones(members, known.rules.objective)


def _whole_runs(known: Known) -> Step | None:
    """The best of each class as the job file has it; of all, where none is evaluated. Then repeats
    of whatever ran whole and is near the best."""
    left, _ = _finalists(known)
    leaders = [members[0] for members in known.classes(left)]
    missing = [one for one in leaders if not one.whole]
    asks = known.fitting([_whole(one, known.trials) for one in missing])
    if asks:
        return Step("send", "the best as the job file has them, with their quality", asks)
    whole = [one for one in left if one.whole]
    near = [] if missing or not whole else race.open_ones(whole, known.rules.objective)
    asks = known.fitting([_whole(one, known.trials) for one in near])
    return Step("send", "repeats, for the best are near each other", asks) if asks else None


def _whole(one: Figure, trials: Sequence[Trial]) -> Ask:
    return Ask(one.point.index, None, race.repeats(one.point.index, None, trials))


def _done(known: Known) -> Step:
    left, _ = _finalists(known)
    if not left:
        return Step("done", "no point is left: those that ran at all failed")
    best = left[0]
    if best.whole:
        return Step("done", _unjudged(known, left), chosen=best.point.index, verified=True)
    needed = known.price([_whole(best, known.trials)]) or 0.0
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
