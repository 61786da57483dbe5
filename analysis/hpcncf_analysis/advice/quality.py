"""Whether a configuration's model is as good as another's, and what chance leaves open. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, Final

from hpcncf_analysis.summary import Configuration

# So little HR@10 apart is called equal, however many test rows there are.
QUALITY_SLACK: Final = 0.02
STANDARD_ERRORS: Final = 2


def sound_ones(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Those with a speed whose quality holds against the best of their task."""
    alike: dict[tuple[Any, Any], list[Configuration]] = {}
    for one in configurations:
        alike.setdefault(task(one), []).append(one)
    best = {each: best_quality(members) for each, members in alike.items()}
    return [one for one in configurations if one.speed and _holds(one, best[task(one)])]


def holds_quality(one: Configuration, all_of_them: Sequence[Configuration]) -> bool:
    return _holds(one, best_quality([each for each in all_of_them if task(each) == task(one)]))


def _holds(one: Configuration, best: Configuration | None) -> bool:
    return best is None or not is_worse(one, best)


def task(one: Configuration) -> tuple[Any, Any]:
    """What its HR@10 is the answer to: one is low among all items that is high among 99 of them."""
    return one.rows[0].get("evaluation"), one.rows[0].get("data_key")


def best_quality(configurations: Sequence[Configuration]) -> Configuration | None:
    judged = [one for one in configurations if one.median("hr10") is not None]
    return max(judged, key=lambda one: one.median("hr10") or 0.0, default=None)


def is_worse(one: Configuration, best: Configuration) -> bool:
    """Whether its HR@10 is lower by more than the slack and by more than chance explains."""
    lower = quality_gap(one, best)
    return lower is not None and lower > max(QUALITY_SLACK, chance(one, best) or 0.0)


def quality_gap(one: Configuration, best: Configuration) -> float | None:
    ours, theirs = one.median("hr10"), best.median("hr10")
    known = ours is not None and theirs is not None and task(one) == task(best)
    return (theirs or 0.0) - (ours or 0.0) if known else None


def chance(one: Configuration, other: Configuration) -> float | None:
    """Two standard errors of the difference of two shares of hits (binomial, independent).

    Both were asked of the same test rows, and hit many of them together: the real error is smaller.
    None where the number of test rows is not known.
    """
    variances = [_variance(one), _variance(other)]
    known = [variance for variance in variances if variance is not None]
    return STANDARD_ERRORS * sqrt(sum(known)) if len(known) == len(variances) else None


def _variance(one: Configuration) -> float | None:
    share, rows = one.median("hr10"), one.rows[0]["test_rows"]
    return None if share is None or not rows else share * (1 - share) / rows
