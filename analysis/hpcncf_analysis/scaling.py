"""Speed-up and parallel efficiency against the smallest run of the same series. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcncf_analysis.summary import Configuration


@dataclass(frozen=True)
class Scaled:
    """How one configuration does against the base of its series."""

    speedup: float
    parallel_efficiency: float
    base: str
    """The base's label: the fewest cores of the series, then the fewest ranks."""


def speedup(speed: float, base_speed: float) -> float:
    """T(base) / T(this), from speeds: the work is the same."""
    return speed / base_speed


def parallel_efficiency(speedup: float, cores: float, base_cores: float) -> float:
    """The speed-up for each time that the cores were multiplied: 1.0 is ideal."""
    return speedup / (cores / base_cores)


def by_series(configurations: Iterable[Configuration]) -> dict[str, list[Configuration]]:
    """Those with a speed, in order of cores; the first of each series is its base."""
    grouped: dict[str, list[Configuration]] = {}
    for one in sorted(configurations, key=lambda one: (one.cores, one.ranks, one.label)):
        if one.speed:
            grouped.setdefault(one.series, []).append(one)
    return grouped


def scaled(configurations: Iterable[Configuration]) -> Mapping[str, Scaled]:
    """Configuration key -> its scaling; those without a speed have none."""
    return {
        one.key: _against(one, series[0])
        for series in by_series(configurations).values()
        for one in series
    }


def _against(one: Configuration, base: Configuration) -> Scaled:
    assert one.speed
    assert base.speed
    gained = speedup(one.speed, base.speed)
    return Scaled(gained, parallel_efficiency(gained, one.cores, base.cores), base.label)


def scales(series: Sequence[Configuration]) -> bool:
    """Whether a series has more than one size to compare."""
    return len({one.cores for one in series}) > 1
