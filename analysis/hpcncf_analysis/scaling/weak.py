"""Weak scaling: the work grows with the cores, and each should take as long as before. Pure.

The work is an epoch's where the data grows with the cores, else a step's where the batch does. An
epoch over the same data remains strong scaling, whatever its batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hpcncf_analysis import labels
from hpcncf_analysis.summary import Configuration

# Work for each core is called equal within this share: batches and data sets are whole numbers.
TOLERANCE: Final = 0.05
Work = Literal["epoch", "step"]


@dataclass(frozen=True)
class Weak:
    """One configuration against the fewest cores of its weak series."""

    base: Configuration
    one: Configuration
    work: Work
    work_ratio: float
    """Instances of an epoch, or of a step, over the base's."""
    time_ratio: float
    """Seconds for that work over the base's: 1 is ideal."""

    @property
    def speedup(self) -> float:
        """Scaled speed-up (Gustafson 1988): the base's time for this work over the time it took."""
        return self.work_ratio / self.time_ratio

    @property
    def efficiency(self) -> float:
        """T(base) / T(this), corrected by how far the work for each core is from equal."""
        return self.speedup / (self.one.cores / self.base.cores)


def weak(configurations: Sequence[Configuration]) -> list[Weak]:
    """Every configuration that has a base with less work, by base, then cores."""
    kinds: tuple[Work, ...] = ("epoch", "step")
    return [
        compared
        for work in kinds
        for members in _alike(configurations, work)
        for compared in _series(members, work)
    ]


def _alike(configurations: Sequence[Configuration], work: Work) -> list[list[Configuration]]:
    """Those of equal settings but resources and what makes the work."""
    told = labels.varying([one.rows[0] for one in configurations]) if configurations else []
    grows = {"batch", *(["data_title", "data_key"] if work == "epoch" else [])}
    grouped: dict[tuple[str, ...], list[Configuration]] = {}
    for one in configurations:
        if instances(one, work) and one.speed and not one.by_time:
            words = labels.settings(one.rows[0], [name for name in told if name not in grows])
            grouped.setdefault((*words.values(), _data(one, work)), []).append(one)
    return list(grouped.values())


def _data(one: Configuration, work: Work) -> str:
    return "" if work == "epoch" else str(one.rows[0].get("data_key"))


def _series(members: Sequence[Configuration], work: Work) -> list[Weak]:
    found: list[Weak] = []
    placed: set[str] = set()
    for base in sorted(members, key=lambda one: (one.cores, one.ranks, one.label)):
        more = [one for one in members if one.key not in placed and _grown(base, one, work)]
        if base.key not in placed and more:
            placed |= {base.key, *(one.key for one in more)}
            found += [_compared(base, one, work) for one in sorted(more, key=lambda one: one.cores)]
    return found


def _grown(base: Configuration, one: Configuration, work: Work) -> bool:
    each = instances(one, work) / one.cores / (instances(base, work) / base.cores)
    return one.cores > base.cores and abs(each - 1) <= TOLERANCE


def _compared(base: Configuration, one: Configuration, work: Work) -> Weak:
    assert base.speed
    assert one.speed
    ratio = instances(one, work) / instances(base, work)
    return Weak(base, one, work, ratio, ratio / (one.speed / base.speed))


def instances(one: Configuration, work: Work) -> float:
    """Of an epoch; or of a step, in positives. 0 where it is not known."""
    if work == "epoch":
        return one.median("instances_per_epoch") or 0.0
    return float(one.rows[0].get("batch") or 0)
