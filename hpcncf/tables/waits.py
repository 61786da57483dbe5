"""What a run's ranks waited for, over all of them: cores, disks, memory, a quota. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hpcncf.records import RankRecord
from hpcncf.tables.trained import Row

WAITS: Final = (
    "runnable_mean",
    "runqueue_s",
    "throttled_s",
    "iowait_s",
    "blocked_s",
    "io_pressure_s",
    "memory_pressure_s",
    "major_faults",
    "swap_peak_mib",
)


def columns_waits(ranks: Sequence[RankRecord]) -> Row:
    """All of WAITS; each None where a rank does not tell it, as records of older versions."""

    def told(value: Callable[[RankRecord], float | None]) -> list[float] | None:
        return whole_waits(value(record) for record in ranks)

    return {
        "runnable_mean": _sum(told(lambda r: r.cpu.runnable_mean)),
        "runqueue_s": _sum(told(lambda r: r.cpu.runqueue_s)),
        "throttled_s": _over_nodes(ranks, told(lambda r: r.cpu.throttled_s)),
        "iowait_s": _sum(told(lambda r: r.cpu.iowait_s)),
        "blocked_s": _sum(told(lambda r: r.io.blocked_s)),
        "io_pressure_s": _largest(told(lambda r: r.io.pressure_s)),
        "memory_pressure_s": _largest(told(lambda r: r.memory.pressure_s)),
        "major_faults": _sum(told(lambda r: r.memory.major_faults)),
        "swap_peak_mib": _sum(told(lambda r: r.memory.swap_peak_mib)),
    }


def whole_waits(values: Iterable[float | None]) -> list[float] | None:
    """None unless every one is known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def _sum(values: list[float] | None) -> float | None:
    return sum(values) if values else None


def _largest(values: list[float] | None) -> float | None:
    return max(values, default=None) if values else None


def _over_nodes(ranks: Sequence[RankRecord], values: list[float] | None) -> float | None:
    """The ranks of a node tell of one job's cgroup: the largest counts, once for each node."""
    if not values:
        return None
    nodes: dict[int, float] = defaultdict(float)
    for record, value in zip(ranks, values, strict=True):
        nodes[record.node_index] = max(nodes[record.node_index], value)
    return sum(nodes.values())
