"""The time since a process started, and the moments that belong to it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from hpcncf.monitor import procfs


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
