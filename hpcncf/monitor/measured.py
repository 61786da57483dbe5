"""What a monitor measured, as the record's parts, and what makes it worth less, in words."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from hpcncf.monitor import growth, shortage
from hpcncf.monitor.cores import cpu_list
from hpcncf.monitor.windows import Window
from hpcncf.records import Cores, Cpu, Gpu, Io, Memory, NodeRecord

PEAK_WINDOW_S: Final = 10.0

TOO_SHORT_S: Final = 5.0
OTHERS_CORES: Final = 0.2
STEAL_SHARE: Final = 0.05
MEMORY_SHARE: Final = 0.9


@dataclass(frozen=True)
class Measured:
    """What one process tree did from its start to its end: the parts of a rank's record."""

    started_at: str
    ended_at: str
    elapsed_s: float
    cores: Cores
    cpu: Cpu
    memory: Memory
    io: Io
    warnings: list[str]


class Peak:
    """The most cores that were in use over any `window_s` seconds, sample to sample."""

    def __init__(self, window_s: float = PEAK_WINDOW_S) -> None:
        self._window_s = window_s
        self._recent: deque[tuple[float, float]] = deque()
        self.cores: float | None = None

    def add(self, at_s: float, cpu_s: float) -> None:
        """`cpu_s` is the total so far."""
        self._recent.append((at_s, cpu_s))
        # The shortest stretch that is not shorter than the window.
        while len(self._recent) > 1 and at_s - self._recent[1][0] >= self._window_s:
            self._recent.popleft()
        first_s, first_cpu_s = self._recent[0]
        if at_s - first_s >= self._window_s:
            cores = (cpu_s - first_cpu_s) / (at_s - first_s)
            self.cores = max(cores, self.cores or 0.0)


def warnings(
    cores: Cores, memory: Memory, elapsed_s: float, windows: list[Window], cpus: list[int]
) -> list[str]:
    """What a reader of these figures must know. `windows` and `cpus` are the node's, or empty."""
    return [
        *_of_cores(cores),
        *_of_run(memory, elapsed_s),
        *_of_node(windows, cpus),
        *_of_growth(windows),
    ]


def _of_cores(cores: Cores) -> list[str]:
    found = []
    short = shortage.told(cores.allocated, cores.usable, cores.cpus, cores.quota)
    if short is not None:
        found.append(short)
    if cores.affinity_changed:
        found.append(
            f"the affinity mask was {cpu_list(cores.cpus)} at the start and another at the end: "
            "something bound the process anew (OMP_PROC_BIND does)"
        )
    return found


def _of_run(memory: Memory, elapsed_s: float) -> list[str]:
    found = []
    if elapsed_s < TOO_SHORT_S:
        found.append(
            f"{elapsed_s:.2g} s is too short to judge: CPU time ticks every 10 ms, and start-up "
            "is most of it"
        )
    if memory.limit_mib and memory.rss_peak_mib > MEMORY_SHARE * memory.limit_mib:
        found.append(
            f"memory peaked at {memory.rss_peak_mib / memory.limit_mib:.0%} of its limit of "
            f"{memory.limit_mib:.0f} MiB: ask for more, or the next run may be killed"
        )
    return found


def _of_node(windows: list[Window], cpus: list[int]) -> list[str]:
    length_s = sum(window.length_s for window in windows)
    if length_s < 1:
        return []
    others = others_cores(windows) or 0.0
    steal = sum(window.steal_s for window in windows) / length_s / len(cpus)
    found = []
    if others > OTHERS_CORES:
        found.append(
            f"a neighbour used {others:.1f} of your {len(cpus)} cores: speed measured here is too "
            "low; measure again when the cores are yours alone"
        )
    if steal > STEAL_SHARE:
        found.append(
            f"the hypervisor took {steal:.0%} of the cores' time: this virtual machine shares its "
            "cores with others"
        )
    return found


def _of_growth(windows: list[Window]) -> list[str]:
    ends = [window.start_s + window.length_s for window in windows]
    found = growth.steady(ends, [window.anonymous_mib for window in windows])
    return [str(found)] if found else []


def others_cores(windows: list[Window]) -> float | None:
    length_s = sum(window.length_s for window in windows)
    return sum(window.others_s for window in windows) / length_s if length_s else None


def node_record(
    run_id: str, attempt: int, node: str, node_index: int, started_at: str,
    cpus: list[int], windows: list[Window], gpus: list[Gpu] | None = None,
) -> NodeRecord:  # fmt: skip
    """The series of one node, rounded to what the clocks can tell."""
    return NodeRecord(
        run_id=run_id,
        attempt=attempt,
        node=node,
        node_index=node_index,
        started_at=started_at,
        start_s=[round(w.start_s, 3) for w in windows],
        length_s=[round(w.length_s, 3) for w in windows],
        cpus=cpus,
        busy=_by_cpu(len(cpus), [w.busy_s for w in windows], windows),
        ours=_by_cpu(len(cpus), [w.ours_s for w in windows], windows),
        steal=[_share(w.steal_s, w.length_s * len(cpus)) for w in windows],
        others_cores=[round(w.others_s / w.length_s, 3) for w in windows],
        tree_cpu_s=[round(w.tree_cpu_s, 3) for w in windows],
        rss_mib=[round(w.rss_mib, 1) for w in windows],
        anonymous_mib=[round(w.anonymous_mib, 1) for w in windows],
        memory_used_mib=[round(w.memory_used_mib, 1) for w in windows],
        network_mib=[round(w.network_mib, 3) for w in windows],
        loopback_mib=[round(w.loopback_mib, 3) for w in windows],
        disk_mib=[round(w.disk_mib, 3) for w in windows],
        gpus=gpus,
    )


def _by_cpu(
    cpus: int, seconds: list[tuple[float, ...]], windows: list[Window]
) -> list[list[float]]:
    return [
        [_share(each[cpu], w.length_s) for each, w in zip(seconds, windows, strict=True)]
        for cpu in range(cpus)
    ]


def _share(seconds: float, of_s: float) -> float:
    # The kernel's tick may fall just outside the window: no CPU is busy for more than all of it.
    return round(min(1.0, seconds / of_s), 3)
