"""Which configuration to ask for, and what chance and neighbours leave open about it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcncf_analysis.advice.front import front
from hpcncf_analysis.alerts import disturbed
from hpcncf_analysis.summary import Configuration


@dataclass(frozen=True)
class Ratio:
    """How many times as much one does as another; from its repeats' extremes, low to high."""

    value: float
    low: float | None
    high: float | None

    def times(self, more: float) -> Ratio:
        low, high = (None if end is None else end * more for end in (self.low, self.high))
        return Ratio(self.value * more, low, high)

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
    return of_speeds(one, other).times(other.cores / one.cores)


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
    """The knee: the fastest of those whose quality holds and whose cores each do enough."""
    found = front(configurations)
    return found.knee.one if found else None


def mostly_disturbed(compared: Sequence[Configuration]) -> bool:
    rows = [row for one in compared for row in one.rows]
    return sum(map(disturbed, rows)) > len(rows) / 2


def cpu_models(compared: Sequence[Configuration]) -> list[str]:
    """Speeds on different ones do not compare."""
    return sorted({row["cpu_model"] for one in compared for row in one.rows if row["cpu_model"]})
