"""How long threads waited for a CPU, a disk, or memory.

A thread's account goes with it: of one that ended, what the last look saw is kept, and one that
lived between two looks is not in it. It is the kernel's own: a sampling thread holds the GIL, and
finds every other Python thread waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from hpcncf.monitor import procfs

# Two files per thread: however many there are, a rank gives no more than this share of its time.
SHARE = 0.001

ThreadId = tuple[int, int]  # process, thread


class Waits:
    """Thread-seconds spent waiting; None where the kernel does not count them."""

    def __init__(self) -> None:
        self._disks_counted = procfs.counts_disk_waits()
        self._runqueue, self._disks = Growing(), Growing()
        self._next_s = 0.0

    @property
    def runqueue_s(self) -> float | None:
        return self._runqueue.total

    @property
    def disks_s(self) -> float | None:
        # A kernel without this account may report zero.
        return self._disks.total if self._disks_counted else self._disks.total or None

    def look(self, threads: Iterable[ThreadId]) -> None:
        """Read these threads' counters, unless the last reading is too recent for its cost."""
        if time.monotonic() < self._next_s:
            return
        begun_s = time.thread_time()  # what it costs, not how long it took among others
        self.look_closely(threads)
        self._next_s = time.monotonic() + (time.thread_time() - begun_s) / SHARE

    def look_closely(self, threads: Iterable[ThreadId]) -> None:
        runqueue: dict[ThreadId, float] = {}
        disks: dict[ThreadId, float] = {}
        for pid, thread in threads:
            queued_s = procfs.runqueue_s(pid, thread)
            if queued_s is not None:
                runqueue[pid, thread] = queued_s
            if self._disks_counted is not False:
                stat = procfs.stat(f"/proc/{pid}/task/{thread}")
                disks |= {(pid, thread): stat.disk_wait_s} if stat else {}
        self._runqueue.add(runqueue)
        self._disks.add(disks)


class Blocked:
    """Sum of the time that processes were blocked, from how many were waiting at each reading."""

    def __init__(self) -> None:
        self.total_s: float | None = None
        self._last_s: float | None = None

    def look(self, blocked: int, at_s: float) -> None:
        """Count `blocked` processes as waiting from the last reading until `at_s`."""
        if self._last_s is not None:
            self.total_s = (self.total_s or 0.0) + blocked * (at_s - self._last_s)
        self._last_s = at_s


class Growing:
    """Sum of monotonic counters over every thread that was ever seen."""

    def __init__(self) -> None:
        self.total: float | None = None
        self._last: dict[ThreadId, float] = {}

    def add(self, now: dict[ThreadId, float]) -> None:
        if now:
            grown = sum(self._grown(key, value) for key, value in now.items())
            self.total = (self.total or 0.0) + grown
        self._last = now

    def _grown(self, key: ThreadId, value: float) -> float:
        last = self._last.get(key, 0.0)
        return value - last if value >= last else value  # a number that a new thread got
