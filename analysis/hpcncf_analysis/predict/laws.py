"""What each part of a step costs by the numbers of a point: the laws that may be fitted. Pure.

Computing by N threads: 1/N, 1 and N - 1 are the terms of the USL's time (Gunther 2007), of which
Amdahl's law has the first two. An all-reduce over R ranks in a ring takes 2 (R - 1) messages of
1/R of the bytes (Thakur, Rabenseifner and Gropp 2005); where each sends all it has to all others,
they are R - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hpcncf_analysis.predict.points import Measured, Point

Features = Callable[[Point, float], list[float]]
"""Of a point, and the bytes of each rank's step."""

# A share of a step in these many positives, so that coefficients are of like size.
UNIT: Final = 256.0


def _share(point: Point) -> float:
    return point.share / UNIT


def _flat(_: Point, __: float) -> list[float]:
    return [1.0]


def _by_share(point: Point, _: float) -> list[float]:
    return [1.0, _share(point)]


def _crowded(point: Point, _: float) -> list[float]:
    return [1.0, _share(point), _share(point) * (point.ranks_per_node - 1)]


def _amdahl(point: Point, bytes_: float) -> list[float]:
    return [*_crowded(point, bytes_), _share(point) / point.threads]


def _by_threads(point: Point, _: float) -> list[float]:
    share, threads = _share(point), point.threads
    crowd = point.ranks_per_node - 1
    return [1.0, share, share / threads, share * (threads - 1), share * crowd]


def _all_by_threads(point: Point, bytes_: float) -> list[float]:
    threads = point.threads
    return [*_by_threads(point, bytes_), 1 / threads, float(threads - 1)]


def ring(point: Point) -> tuple[float, float]:
    """Messages of an exchange that follow one another, and how often a rank's bytes go out."""
    others = point.ranks - 1
    if dict(point.sync).get("sync") == repr("rows"):
        return float(others), float(others)
    return 2.0 * others, 2.0 * others / point.ranks


def _exchange(point: Point, bytes_: float) -> list[float]:
    messages, times = ring(point)
    return [messages, times * bytes_ / 1e6]


LAWS: Final[dict[str, dict[str, Features]]] = {
    "compute": {
        "a cost of each step and of each instance": _by_share,
        "the same, and ranks on one node in each other's way": _crowded,
        "instances shared by the threads": _amdahl,
        "instances shared by the threads, which cost one another time": _by_threads,
        "steps and instances shared by the threads": _all_by_threads,
    },
    "input": {
        "a cost of each step and of each instance": _by_share,
        "the same, and ranks on one node in each other's way": _crowded,
        "instances shared by the threads": _amdahl,
    },
    "sync": {"latency + bytes / bandwidth": _exchange},
    "bytes": {"as many in each step": _flat, "by the rows of a step": _by_share},
}
"""Part -> its laws by name, simplest first."""


def family_laws(part: str, point: Point) -> object:
    """Points of one family have the same costs in this part."""
    return {
        "compute": point.compute,
        "input": point.input,
        "sync": point.sync,
        "bytes": point.sync,
    }[part]


def cost(part: str, one: Measured) -> float:
    return {
        "compute": one.compute_s,
        "input": one.input_s,
        "sync": one.sync_s,
        "bytes": one.sync_bytes,
    }[part]


def scale(part: str, one: Measured) -> float:
    """What an error is set against: the whole step, so that a part that hardly counts does not."""
    return max(one.sync_bytes, 1.0) if part == "bytes" else one.step_s
