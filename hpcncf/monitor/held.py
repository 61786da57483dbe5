"""How long the kernel held a job back: by its CPU quota, and for want of memory or of a disk.

Its counters only grow, from a cgroup's start or the machine's: two looks tell what lies between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hpcncf.monitor.cores import ROOT, cgroup_and_above, contents


@dataclass(frozen=True)
class Held:
    """Seconds; None where nobody counts."""

    throttled_s: float | None
    """For which the quota held threads back, summed over CPUs; of the cgroup with the most."""
    memory_s: float | None
    """In which some thread waited for memory."""
    io_s: float | None
    """In which some thread waited for a disk."""


@dataclass(frozen=True)
class Counters:
    """The counters at one moment, of this process's cgroup and all above it."""

    throttled_s: dict[Path, float] = field(default_factory=dict)
    memory_s: float | None = None
    io_s: float | None = None


def read(root: Path = ROOT) -> Counters:
    return Counters(_throttled_s(root), _pressure_s("memory", root), _pressure_s("io", root))


def between(before: Counters, after: Counters) -> Held:
    """What was added; a cgroup that is seen at one end only tells nothing."""
    both = before.throttled_s.keys() & after.throttled_s.keys()
    throttled = [after.throttled_s[file] - before.throttled_s[file] for file in both]
    return Held(
        max(throttled, default=None),
        _added(before.memory_s, after.memory_s),
        _added(before.io_s, after.io_s),
    )


def _added(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _throttled_s(root: Path) -> dict[Path, float]:
    """By file: `throttled_usec` in v2, `throttled_time` in nanoseconds in v1."""
    found = {}
    for controller, key, unit_s in (
        (None, "throttled_usec", 1e-6),
        ("cpu", "throttled_time", 1e-9),
    ):
        for folder in cgroup_and_above(controller, root):
            for line in contents(folder / "cpu.stat").splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    found[folder / "cpu.stat"] = int(value) * unit_s
    return found


def _pressure_s(what: str, root: Path) -> float | None:
    """PSI's total of `some` (accounting/psi.rst): of the own cgroup, else of the node."""
    own = [folder / f"{what}.pressure" for folder in cgroup_and_above(None, root)[:1]]
    for file in (*own, root / "proc/pressure" / what):
        for line in contents(file).splitlines():
            if line.startswith("some "):
                return int(line.rpartition("total=")[2]) * 1e-6
    return None
