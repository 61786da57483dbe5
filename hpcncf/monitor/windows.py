"""Time windows that widen as a run grows, so that files stay small."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from hpcncf.monitor import gpu, procfs
from hpcncf.monitor.gpu import GpuWindow


class Clock:
    """Time since a process started; the wall clock is asked once, it may be set meanwhile."""

    def __init__(self, pid: int) -> None:
        self._age_s = procfs.age_s(pid)
        self._read_s = time.monotonic()
        self._started = datetime.now(UTC) - timedelta(seconds=self._age_s)
        self.started_at = self.at(0.0)

    def elapsed_s(self) -> float:
        return self._age_s + time.monotonic() - self._read_s

    def at(self, elapsed_s: float) -> str:
        """UTC, ISO 8601."""
        return (self._started + timedelta(seconds=elapsed_s)).isoformat(timespec="milliseconds")


MOST: Final = 600


@dataclass(frozen=True)
class Window:
    """What happened in a stretch of time: seconds and MiB that add up, and two last states."""

    start_s: float
    length_s: float
    busy_s: tuple[float, ...]
    """By CPU: whoever used it."""
    ours_s: tuple[float, ...]
    """By CPU: an estimate."""
    steal_s: float
    """Of all CPUs together."""
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
        """Seconds that others ran. Below zero by rounding only: the clocks tick in 10 ms."""
        return max(0.0, sum(self.busy_s) - self.tree_cpu_s)


def merge(first: Window, second: Window) -> Window:
    """Two neighbours as one."""
    return Window(
        start_s=first.start_s,
        length_s=first.length_s + second.length_s,
        busy_s=_added(first.busy_s, second.busy_s),
        ours_s=_added(first.ours_s, second.ours_s),
        steal_s=first.steal_s + second.steal_s,
        tree_cpu_s=first.tree_cpu_s + second.tree_cpu_s,
        network_mib=first.network_mib + second.network_mib,
        loopback_mib=first.loopback_mib + second.loopback_mib,
        disk_mib=first.disk_mib + second.disk_mib,
        rss_mib=second.rss_mib,
        memory_used_mib=second.memory_used_mib,
        gpus=tuple(map(gpu.merge, first.gpus, second.gpus)),
        anonymous_mib=second.anonymous_mib,
    )


def _added(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))


class Windows:
    """At most `most` windows of `width_s` each; the width doubles when they would be more."""

    def __init__(self, width_s: float = 1.0, most: int = MOST) -> None:
        assert most >= 2
        self.width_s = width_s
        self._most = most
        self._done: list[Window] = []
        self._open: Window | None = None

    def add(self, window: Window) -> None:
        """The next stretch of time, as short as it was sampled."""
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
