"""Configurations that differ in one size alone: the lines along which a law may be fitted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hpcncf_analysis import labels
from hpcncf_analysis.scaling import law
from hpcncf_analysis.scaling.law import Law, Name, Refusal
from hpcncf_analysis.summary import Configuration, by_series

Grows = Literal["ranks", "cores per rank"]
# A large grid has a line for every row and column of it: more laws than these nobody compares.
MOST: Final = 12


@dataclass(frozen=True)
class Line:
    """Sizes of one series, ascending: more ranks of as many cores, or more cores for as many
    ranks."""

    series: str
    grows: Grows
    points: tuple[Configuration, ...]
    left_out: tuple[Configuration, ...]
    """Of a size that another of the line already has: on more nodes, with other threads."""

    @property
    def base(self) -> Configuration:
        return self.points[0]

    @property
    def name(self) -> str:
        """`1 to 8 ranks × 2 cores · vectorized`."""
        row, sizes = self.base.rows[0], f"{self.sizes[0]:g} to {self.sizes[-1]:g}"
        if self.grows == "ranks":
            shape = f"{sizes} ranks × {labels.counted(cores_per_rank(self.base), 'core')}"
        else:
            ranks = int(row["world_size"])
            shape = f"{sizes} cores" if ranks == 1 else f"{ranks} ranks × {sizes} cores"
        return " · ".join(part for part in (shape, self.series) if part)

    @property
    def sizes(self) -> list[float]:
        return [size(one, self.grows) for one in self.points]

    def speeds(self) -> list[list[float]]:
        """Of each size its repeats' speeds."""
        return [speeds(one) for one in self.points]

    def fit(self, name: Name) -> Law | Refusal:
        return law.fit(self.sizes, self.speeds(), name)


def lines(configurations: Sequence[Configuration]) -> list[Line]:
    """Every line of two sizes or more, the longest of each series first."""
    found = []
    for series, members in by_series(configurations).items():
        kinds: tuple[Grows, ...] = ("ranks", "cores per rank")
        of_series = [line for grows in kinds for line in _lines(series, members, grows)]
        found += sorted(of_series, key=lambda line: -len(line.points))
    return found


def long_enough(found: Sequence[Line]) -> list[Line]:
    """Those of enough sizes for a law; of very many the longest."""
    several = [line for line in found if len(line.points) >= law.FEWEST_SIZES]
    return sorted(several, key=lambda line: -len(line.points))[:MOST]


def _lines(series: str, members: Sequence[Configuration], grows: Grows) -> list[Line]:
    kept: dict[float, list[Configuration]] = {}
    for one in members:
        kept.setdefault(cores_per_rank(one) if grows == "ranks" else one.ranks, []).append(one)
    made = [_line(series, grows, ones) for ones in kept.values()]
    return [line for line in made if len(line.points) > 1]


def _line(series: str, grows: Grows, ones: Sequence[Configuration]) -> Line:
    """Of several of one size the plainest: the fewest nodes, a thread for each core."""
    plainest: dict[float, Configuration] = {}
    for one in sorted(ones, key=_plain):
        plainest.setdefault(size(one, grows), one)
    points = tuple(one for _, one in sorted(plainest.items()))
    return Line(series, grows, points, tuple(one for one in ones if one not in points))


def _plain(one: Configuration) -> tuple[int, bool, str]:
    row = one.rows[0]
    return row["nodes"], bool(labels.threads(row)), one.label


def cores_per_rank(one: Configuration) -> float:
    return one.cores / one.ranks


def size(one: Configuration, grows: Grows) -> float:
    return float(one.ranks) if grows == "ranks" else cores_per_rank(one)


def speeds(one: Configuration) -> list[float]:
    """Its repeats': instances per second; of a command that reports none, runs per hour."""
    if one.by_time:
        return [3600 / row["elapsed_s"] for row in one.rows if row["elapsed_s"]]
    return [row["instances_per_s"] for row in one.rows if row["instances_per_s"]]
