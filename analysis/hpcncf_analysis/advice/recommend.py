"""Which configuration to ask for, and what chance and neighbours leave open about it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final

from hpcncf_analysis.alerts import disturbed
from hpcncf_analysis.summary import Configuration

# More cores are worth asking for while each delivers this share of the most that any core does.
WORTH: Final = 0.7
# So little HR@10 apart is called equal, however many test rows there are.
QUALITY_SLACK: Final = 0.02
STANDARD_ERRORS: Final = 2


@dataclass(frozen=True)
class Ratio:
    """How many times as much one does as another; from its repeats' extremes, low to high."""

    value: float
    low: float | None
    high: float | None

    @property
    def overlaps(self) -> bool:
        """Whether the repeats leave open which of the two does more."""
        return self.low is not None and self.high is not None and self.low <= 1 <= self.high


def of_speeds(one: Configuration, other: Configuration) -> Ratio:
    assert one.speed
    assert other.speed
    low, high = speed_range(one)
    other_low, other_high = speed_range(other)
    if len(one.rows) < 2 and len(other.rows) < 2:
        return Ratio(one.speed / other.speed, None, None)
    return Ratio(one.speed / other.speed, low / other_high, high / other_low)


def of_cores(one: Configuration, other: Configuration) -> Ratio:
    """The same of what each core does."""
    speeds, more = of_speeds(one, other), other.cores / one.cores
    ends = (None if end is None else end * more for end in (speeds.low, speeds.high))
    return Ratio(speeds.value * more, *ends)


def speed_range(one: Configuration) -> tuple[float, float]:
    """The slowest and the fastest repeat."""
    name = "elapsed_s" if one.by_time else "instances_per_s"
    ends = [one.figures.get(f"{name}_{end}", one.median(name)) for end in ("low", "high")]
    low, high = sorted(3600 / end if one.by_time else end for end in ends if end)
    return low, high


def per_core(one: Configuration) -> float:
    return (one.speed or 0.0) / one.cores


def price(among: Sequence[Configuration]) -> Callable[[Configuration], float]:
    """What one costs: core-seconds for an epoch where all know it, else for an instance."""
    if all(one.median("core_s_per_epoch") for one in among):
        return lambda one: one.median("core_s_per_epoch") or 0.0
    return lambda one: 1 / per_core(one)


def recommended(configurations: Sequence[Configuration]) -> Configuration | None:
    """The fastest of those whose quality holds and whose cores each do enough."""
    sound = sound_ones(configurations)
    most = max(map(per_core, sound), default=0.0)
    worth = [one for one in sound if per_core(one) >= WORTH * most]
    return max(worth, key=lambda one: one.speed or 0.0, default=None)


def sound_ones(configurations: Sequence[Configuration]) -> list[Configuration]:
    return [one for one in configurations if one.speed and holds_quality(one, configurations)]


def holds_quality(one: Configuration, all_of_them: Sequence[Configuration]) -> bool:
    best = best_quality([each for each in all_of_them if task(each) == task(one)])
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


def mostly_disturbed(compared: Sequence[Configuration]) -> bool:
    rows = [row for one in compared for row in one.rows]
    return sum(map(disturbed, rows)) > len(rows) / 2
