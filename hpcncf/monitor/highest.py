"""The largest of what was sampled of a process tree."""

from __future__ import annotations

from hpcncf.monitor.measured import Peak
from hpcncf.monitor.tree import Sample


class Highest:
    """The largest of what was sampled."""

    def __init__(self) -> None:
        self.peak = Peak()
        self.rss_mib = self.anonymous_mib = self.swap_mib = 0.0
        self.threads = self.processes = 0

    def add(self, at_s: float, sample: Sample) -> None:
        self.peak.add(at_s, sample.cpu_s)
        self.add_memory(sample.rss_mib, sample.anonymous_mib)
        self.threads = max(self.threads, sample.threads)
        self.processes = max(self.processes, len(sample.pids))

    def add_swap(self, swap_mib: float) -> None:
        self.swap_mib = max(self.swap_mib, swap_mib)

    def add_memory(self, rss_mib: float, anonymous_mib: float) -> None:
        self.rss_mib = max(self.rss_mib, rss_mib)
        self.anonymous_mib = max(self.anonymous_mib, anonymous_mib)
