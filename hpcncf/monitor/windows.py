"""Time windows that widen as a run grows, so that files stay small."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from hpcncf.monitor import procfs


class Clock:
    """Time since a process started; the wall clock is asked once, it may be set meanwhile."""

    def __init__(self, pid: int) -> None:
        self._age_s = procfs.age_s(pid)
        self._read_s = time.monotonic()
        self._started = datetime.now(UTC) - timedelta(seconds=self._age_s)
        self.started_at = self.at(0.0)

    def elapsed_s(self, until_s: float | None = None) -> float:
        """Seconds from the process's start to now, or to a moment of `time.monotonic`."""
        now_s = time.monotonic() if until_s is None else until_s
        return max(0.0, self._age_s + now_s - self._read_s)

    def at(self, elapsed_s: float) -> str:
        """Return the time `elapsed_s` seconds after the process's start, in ISO 8601 and UTC."""
        return (self._started + timedelta(seconds=elapsed_s)).isoformat(timespec="milliseconds")


MAX_WINDOWS: Final = 600


@dataclass(frozen=True)
class Window:
    """Figures of one stretch of time: seconds and MiB that add up, and states at its end."""

    start_s: float
    length_s: float
    busy_s: tuple[float, ...]
    """Busy time of each CPU, whoever used it."""
    ours_s: tuple[float, ...]
    """Estimated time of this run on each CPU."""
    steal_s: float
    """Time stolen by the hypervisor, summed over all CPUs."""
    tree_cpu_s: float
    network_mib: float
    loopback_mib: float
    disk_mib: float
    rss_mib: float
    """At the end."""
    memory_used_mib: float
    """At the end."""
    gpus: tuple[GpuWindow, ...] = ()
    anonymous_mib: float = 0.0
    """At the end."""

    @property
    def others_s(self) -> float:
        """CPU seconds of other processes, at least 0."""
        return max(0.0, sum(self.busy_s) - self.tree_cpu_s)


@dataclass(frozen=True)
class GpuWindow:
    """Figures of one GPU in one window; None if NVML did not report it."""

    length_s: float
    busy_s: float | None
    ours_s: float | None
    energy_j: float | None
    mhz_s: float | None
    """Clock frequency integrated over time."""
    throttled_s: tuple[float | None, ...]
    """Throttled time by reason, in the order of `gpu.REASONS`."""
    memory_mib: float | None
    """At the end."""
    ours_memory_mib: float | None
    """At the end."""


W = TypeVar("W", Window, GpuWindow)
AT_THE_END: Final = {"rss_mib", "memory_used_mib", "anonymous_mib", "memory_mib", "ours_memory_mib"}


def merge(first: W, second: W) -> W:
    """Merge two adjacent windows into one; a sum is None if it is None in either."""
    names = [field.name for field in fields(first) if field.name not in AT_THE_END]
    sums = {name: _sum(getattr(first, name), getattr(second, name)) for name in names}
    if isinstance(first, Window):
        sums["start_s"] = first.start_s
    return replace(second, **sums)


def _sum(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return None
    if isinstance(first, tuple):
        return tuple(map(_sum, first, second))
    return merge(first, second) if isinstance(first, GpuWindow) else first + second


class Windows:
    """At most `most` windows of `width_s` each; the width doubles when they would be more."""

    def __init__(self, width_s: float = 1.0, most: int = MAX_WINDOWS) -> None:
        assert most >= 2
        self.width_s = width_s
        self._most = most
        self._done: list[Window] = []
        self._open: Window | None = None

    def add(self, window: Window) -> None:
        """Append the figures of the next stretch of time."""
        self._open = merge(self._open, window) if self._open else window
        # Timers come late, never early: half a sample short still is a full window.
        if self._open.length_s >= self.width_s - window.length_s / 2:
            self._done.append(self._open)
            self._open = None
        if len(self._done) >= self._most:
            self._widen()

    def all(self) -> list[Window]:
        return [*self._done, *([self._open] if self._open else [])]

    def _widen(self) -> None:
        self.width_s *= 2
        if len(self._done) % 2:  # nothing is open here: the last window was just closed
            self._open = self._done.pop()
        pairs = zip(self._done[::2], self._done[1::2], strict=True)
        self._done = [merge(first, second) for first, second in pairs]
