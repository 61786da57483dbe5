"""The monitor thread of a rank, and what it measured."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.monitor import procfs
from hpcncf.monitor.cgroup import (
    Pressure,
    cpu_list,
    describe_shortage,
    mask,
    memory_limit,
    on_node,
    pressure_between,
    quota,
    read_counters,
    threads_per_core,
    usable,
    usable_cpus,
)
from hpcncf.monitor.gpu import gpus_of_run
from hpcncf.monitor.node_cores import NodeSampler
from hpcncf.monitor.node_traffic import network_link_mib_s
from hpcncf.monitor.process_tree import Sample, Spent, Tree, own, waited
from hpcncf.monitor.thread_waits import Blocked, Waits
from hpcncf.monitor.topology import nodes
from hpcncf.monitor.windows import Clock, Window, Windows
from hpcncf.records.plain import (
    SCHEMA_VERSION,
    TOO_SHORT_S,
    as_attributes,
    utc_now,
    write_plain,
)

if TYPE_CHECKING:
    from hpcncf.records.schema import Cores, Cpu, Gpu, Io, Memory, NodeRecord

PEAK_WINDOW_S: Final = 10.0

OTHERS_CORES: Final = 0.2
STEAL_SHARE: Final = 0.05
MEMORY_SHARE: Final = 0.9
# Fewer windows show no steady growth of memory.
FEWEST_GROWING: Final = 6


@dataclass(frozen=True)
class Measured:
    """Measurements of one process tree over its whole life: parts of a rank's record."""

    started_at: str
    ended_at: str
    elapsed_s: float
    cores: Cores
    cpu: Cpu
    memory: Memory
    io: Io
    warnings: list[str]

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Measured:
        """Build the measurements from the plain data of `stop_plain`."""
        from hpcncf.records import schema

        parts = {
            "cores": schema.Cores(**plain["cores"]),
            "cpu": schema.Cpu(**plain["cpu"]),
            "memory": schema.Memory(**plain["memory"]),
            "io": schema.Io(**plain["io"]),
        }
        return cls(**{**plain, **parts})


class Peak:
    """Highest mean number of cores in use over any `window_s` seconds between samples."""

    def __init__(self, window_s: float = PEAK_WINDOW_S) -> None:
        self._window_s = window_s
        self._recent: deque[tuple[float, float]] = deque()
        self.cores: float | None = None

    def add(self, at_s: float, cpu_s: float) -> None:
        """Add a sample, taken at `at_s`; `cpu_s` is the CPU time since the start."""
        self._recent.append((at_s, cpu_s))
        # The shortest stretch that is not shorter than the window.
        while len(self._recent) > 1 and at_s - self._recent[1][0] >= self._window_s:
            self._recent.popleft()
        first_s, first_cpu_s = self._recent[0]
        if at_s - first_s >= self._window_s:
            cores = (cpu_s - first_cpu_s) / (at_s - first_s)
            self.cores = max(cores, self.cores or 0.0)


def warnings(
    cores: Cores,
    memory: Memory,
    elapsed_s: float,
    windows: list[Window],
    cpus: list[int],
    env: Mapping[str, str] = os.environ,
) -> list[str]:
    """Return warnings about a run's use of cores and memory.

    `windows` and `cpus` are the node's, or empty; `env` is the program's environment.
    """
    found = []
    if short := describe_shortage(cores.allocated, cores.usable, cores.cpus, cores.quota, env):
        found.append(short)
    if cores.affinity_changed:
        found.append(
            f"the affinity mask was {cpu_list(cores.cpus)} at the start and another at the end: "
            "something bound the process anew (OMP_PROC_BIND does)"
        )
    if elapsed_s < TOO_SHORT_S:
        found.append(
            f"{elapsed_s:.2g} s is too short to judge CPU efficiency: start-up is most of it, and "
            "CPU time ticks every 10 ms"
        )
    if memory.limit_mib and memory.rss_peak_mib > MEMORY_SHARE * memory.limit_mib:
        found.append(
            f"memory peaked at {memory.rss_peak_mib / memory.limit_mib:.0%} of its limit of "
            f"{memory.limit_mib:.0f} MiB: ask for more, or the next run may be killed"
        )
    length_s = sum(window.length_s for window in windows)
    if length_s >= 1:
        others = sum(window.others_s for window in windows) / length_s
        if others > OTHERS_CORES:
            found.append(
                f"a neighbour used {others:.1f} of your {len(cpus)} cores: speed measured here is "
                "too low; measure again when the cores are yours alone"
            )
        steal = sum(window.steal_s for window in windows) / length_s / len(cpus)
        if steal > STEAL_SHARE:
            found.append(
                f"the hypervisor took {steal:.0%} of the cores' time: this virtual machine shares "
                "its cores with others"
            )
    if len(windows) < FEWEST_GROWING:
        return found
    from hpcncf.monitor.memory_growth import steady  # loads statistics, which a short run spares

    ends = [window.start_s + window.length_s for window in windows]
    if growth := steady(ends, [window.anonymous_mib for window in windows]):
        found.append(str(growth))
    return found


def node_record(
    windows: list[Window], cpus: list[int], gpus: list[Gpu] | None = None, **about: Any
) -> NodeRecord:
    """Build the record of a node's series; `about` identifies the run and the node."""
    from hpcncf.records.schema import NodeRecord

    return NodeRecord(**plain_node_record(windows, cpus, gpus, **about))


def plain_node_record(
    windows: list[Window], cpus: list[int], gpus: list[Gpu] | None = None, **about: Any
) -> dict[str, Any]:
    """Build the record of a node's series as plain data, rounded to the clocks' precision."""

    def by_cpu(seconds: Callable[[Window], Sequence[float]]) -> list[list[float]]:
        shares = [[_share(cpu, w.length_s) for cpu in seconds(w)] for w in windows]
        return [[share[at] for share in shares] for at in range(len(cpus))]

    def rounded(name: str, digits: int) -> list[float]:
        return [round(getattr(window, name), digits) for window in windows]

    return dict(
        schema_version=SCHEMA_VERSION,
        kind="node",
        **about,
        start_s=rounded("start_s", 3),
        length_s=rounded("length_s", 3),
        cpus=cpus,
        busy=by_cpu(lambda w: w.busy_s),
        ours=by_cpu(lambda w: w.ours_s),
        steal=[_share(w.steal_s, w.length_s * len(cpus)) for w in windows],
        others_cores=[round(w.others_s / w.length_s, 3) for w in windows],
        tree_cpu_s=rounded("tree_cpu_s", 3),
        rss_mib=rounded("rss_mib", 1),
        anonymous_mib=rounded("anonymous_mib", 1),
        memory_used_mib=rounded("memory_used_mib", 1),
        network_mib=rounded("network_mib", 3),
        network_link_mib_s=network_link_mib_s(),
        loopback_mib=rounded("loopback_mib", 3),
        disk_mib=rounded("disk_mib", 3),
        gpus=None if gpus is None else [gpu.model_dump(mode="json") for gpu in gpus],
    )


def _share(seconds: float, of_s: float) -> float:
    # The kernel's tick may fall just outside the window: no CPU is busy for more than all of it.
    return round(min(1.0, seconds / of_s), 3)


class Highest:
    """Highest values that were sampled from the process tree."""

    def __init__(self) -> None:
        self.peak = Peak()
        self.rss_mib = self.anonymous_mib = self.swap_mib = 0.0
        self.threads = self.processes = 0

    def add(self, at_s: float, sample: Sample) -> None:
        self.peak.add(at_s, sample.cpu_s)
        self.add_memory(sample.rss_mib, sample.anonymous_mib)
        self.threads = max(self.threads, sample.threads)
        self.processes = max(self.processes, len(sample.pids))

    def add_memory(self, rss_mib: float, anonymous_mib: float) -> None:
        self.rss_mib = max(self.rss_mib, rss_mib)
        self.anonymous_mib = max(self.anonymous_mib, anonymous_mib)


# A short run is seen too: the first samples come this fast, then ever slower to the interval.
FIRST_S = 0.05
GLANCE_S = 0.2
GLANCE_SHARE = 0.004
WRITE_EVERY_S = 10.0
# Writing the series may cost a rank no more than this share of its time.
WRITE_SHARE = 0.002


class Monitor:
    """Sampler of this process (`pid` None), or of its children, with `pid` as the main one.

    Elapsed and CPU seconds count from the process's own start, imports included. With a `pid`,
    everything that becomes a child of this process is counted too: a command's orphans are, where
    this process is their subreaper. With a `node_file` this one samples the node as well, and
    rewrites the file every 10 s, so that a run that is killed leaves its series.
    """

    def __init__(
        self,
        run_id: str,
        attempt: int,
        node_index: int = 0,
        pid: int | None = None,
        allocated: float | None = None,
        node_file: Path | None = None,
        node_cpus: list[int] | None = None,
        interval_s: float = 1.0,
        siblings: bool = True,
    ) -> None:
        """Prepare to measure. `siblings`: whether to find other ranks of the run on this node.

        Raises HpcncfError on a system without /proc.
        """
        if not Path("/proc/self/stat").exists():
            raise HpcncfError("a run is measured by Linux's /proc, and this system has none")
        self._run_id, self._attempt, self._node_index = run_id, attempt, node_index
        self._pid = pid or os.getpid()
        self._interval_s = interval_s
        self._clock = Clock(self._pid)
        self._tree = Tree(os.getpid()) if pid is None else Tree(os.getpid(), False, waited())
        self._quota = quota()
        self._look_at_mask()
        self._pinned: str | None = None
        self._allocated = allocated or self._usable
        self._highest = Highest()
        self._swaps = procfs.has_swap()
        self._waited, self._blocked = Waits(), Blocked()
        self._glanced_s, self._glance_every_s = 0.0, GLANCE_S
        self._before = read_counters()
        self._main_s: float | None = None
        self._last = Sample()
        self._node_file = node_file
        self._node_cpus = node_cpus
        self._siblings = siblings
        self._node: NodeSampler | None = None
        self._node_started_at = self._clock.started_at
        self._windows = Windows(interval_s)
        self._write_at_s = WRITE_EVERY_S
        self._problems: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpcncf-monitor", daemon=True)

    def start(self) -> None:
        self._highest.peak.add(0.0, 0.0)
        if self._node_file is not None:
            self._node_started_at = utc_now()
            self._node = NodeSampler(self._tree, self._node_cpus, self._siblings)
        self._sample()
        self._thread.start()

    def so_far(self) -> dict[str, float | None]:
        """Return the fields of the run's progress file, as of the last sample."""
        elapsed_s, spent_s = self._clock.elapsed_s(), self._last.cpu_s
        return {
            "elapsed_s": elapsed_s,
            "cpu_s": spent_s,
            "cpu_efficiency": spent_s / (elapsed_s * self._allocated) if elapsed_s > 0 else None,
            "cores_usable": usable(),
            "cores_allocated": self._allocated,
            "rss_mib": self._last.rss_mib,
        }

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the processes in the last sample."""
        return self._last.pids

    def shortage(self) -> str | None:
        """Return why fewer cores than allocated can be used; None if all can be."""
        return describe_shortage(self._allocated, self._usable, self._cpus, self._quota)

    def reread_affinity(self, how: str) -> None:
        """Read the affinity mask again after this process has changed it; `how` is recorded."""
        self._look_at_mask()
        self._pinned = how

    def _look_at_mask(self) -> None:
        self._cpus = self._mask = usable_cpus(self._pid)
        self._usable = min(float(len(self._cpus)), self._quota or float("inf"))

    def stop(self) -> Measured:
        """Stop sampling and return the measurements; may be called once."""
        return Measured.of(self.stop_plain())

    def stop_plain(self, ended_s: float | None = None) -> dict[str, Any]:
        """Stop sampling and return the measurements as plain data; may be called once.

        `ended_s`: when the process ended, by `time.monotonic`; by default now.
        """
        elapsed_s = self._clock.elapsed_s(ended_s)
        self._stopping.set()
        self._thread.join()
        self._sample()
        self._waited.look_closely(self._tree.threads())
        self._write_node()
        spent = self._tree.spent()
        self.see_main()
        return self._measured(elapsed_s, spent)

    def see_main(self) -> None:
        """Read and keep the CPU time of the main process alone, without its children.

        For a command, call this before it is waited for: afterwards only the sum with its
        children is known.
        """
        if self._pid == os.getpid():
            self._main_s = own().cpu_s
        elif stat := procfs.stat(f"/proc/{self._pid}"):
            self._main_s = stat.user_s + stat.system_s

    def node_record(self) -> NodeRecord:
        """Build the record of the node's series so far; empty unless this rank samples the node."""
        from hpcncf.records.schema import NodeRecord

        return NodeRecord(**self.plain_node_record())

    def plain_node_record(self) -> dict[str, Any]:
        """Build the record of the node's series so far, as plain data."""
        windows, node = self._windows.all(), self._node
        return plain_node_record(
            windows,
            node.cpus if node else [],
            gpus_of_run(node.gpus, windows) if node else None,
            run_id=self._run_id,
            attempt=self._attempt,
            node=os.uname().nodename,
            node_index=self._node_index,
            started_at=self._node_started_at,
        )

    def _run(self) -> None:
        wait_s = min(FIRST_S, self._interval_s)
        while not self._waits(wait_s):
            self._sample()
            if self._clock.elapsed_s() >= self._write_at_s:
                self._write_node()
            wait_s = min(2 * wait_s, self._interval_s)

    def _waits(self, seconds: float) -> bool:
        """Wait for the next sample; return True once sampling has to stop.

        Meanwhile memory and blocked processes are read more often: what an evaluation allocates
        is freed within a second.
        """
        while seconds > 0:
            pause_s = min(seconds, self._glance_every_s)
            if self._stopping.wait(pause_s):
                return True
            self._glance()
            seconds -= pause_s
        return False

    def _glance(self) -> None:
        begun_s = time.thread_time()
        self._highest.add_memory(*self._tree.memory_mib())
        self._blocked.look(self._tree.blocked(), self._clock.elapsed_s())
        # Much, of hundreds of processes. Of two the lesser: one may have lost its core.
        before_s, self._glanced_s = self._glanced_s, time.thread_time() - begun_s
        self._glance_every_s = max(GLANCE_S, min(before_s, self._glanced_s) / GLANCE_SHARE)

    def _sample(self) -> None:
        self._last = self._tree.sample()
        self._highest.add(self._clock.elapsed_s(), self._last)
        if self._swaps:
            self._highest.swap_mib = max(self._highest.swap_mib, self._tree.swapped_mib())
        self._waited.look(self._tree.threads())
        self._mask = mask(self._pid) or self._mask
        if self._node is not None:
            self._windows.add(self._node.sample(self._last))

    def _write_node(self) -> None:
        if self._node_file is None:
            return
        begun_s = time.thread_time()
        try:
            write_plain(self._node_file, self.plain_node_record())
        except OSError as error:  # a full disk must not end the run that we watch
            self._problems.append(f"{self._node_file}: not written: {error.strerror}")
        pause_s = max(WRITE_EVERY_S, (time.thread_time() - begun_s) / WRITE_SHARE)
        self._write_at_s = self._clock.elapsed_s() + pause_s

    def _measured(self, elapsed_s: float, spent: Spent) -> dict[str, Any]:
        back, cpus = pressure_between(self._before, read_counters()), self._cpus
        cores = {
            "allocated": self._allocated,
            "usable": self._usable,
            "used": spent.cpu_s / elapsed_s if elapsed_s > 0 else None,
            "cpus": cpus,
            "affinity_changed": self._mask != cpus,
            "quota": self._quota,
            "threads_per_core": threads_per_core(),
            "on_node": on_node(),
            "pinned": self._pinned,
            "numa_nodes": nodes(cpus),
        }
        limit = memory_limit()
        memory = {
            "rss_peak_mib": self._highest.rss_mib,
            "anonymous_peak_mib": self._highest.anonymous_mib,
            "limit_mib": limit.value if limit else None,
            "major_faults": spent.major_faults,
            "pressure_s": back.memory_s,
            "swap_peak_mib": self._highest.swap_mib,
        }
        windows, node_cpus = self._windows.all(), self._node.cpus if self._node else []
        seen = as_attributes({"cores": cores, "memory": memory}, "cores", "memory")
        return {
            "started_at": self._clock.started_at,
            "ended_at": self._clock.at(elapsed_s),
            "elapsed_s": elapsed_s,
            "cores": cores,
            "cpu": self._cpu(elapsed_s, spent, back),
            "memory": memory,
            "io": {
                "read_mib": spent.read_bytes / 2**20,
                "write_mib": spent.write_bytes / 2**20,
                "pressure_s": back.io_s,
                "blocked_s": self._blocked.total_s,
            },
            "warnings": [
                *warnings(seen.cores, seen.memory, elapsed_s, windows, node_cpus),
                *self._problems[:1],
            ],
        }

    def _cpu(self, elapsed_s: float, spent: Spent, back: Pressure) -> dict[str, Any]:
        queued_s, main_s = self._waited.runqueue_s, self._main_s
        runs = None if queued_s is None else spent.cpu_s + queued_s
        efficiency = spent.cpu_s / (elapsed_s * self._allocated) if elapsed_s > 0 else None
        peak = self._highest.peak.cores
        if peak is not None:
            # The average has the kernel's last word, the samples do not: a peak is no less.
            peak = max(peak / self._allocated, efficiency or 0.0)
        return {
            "user_s": spent.user_s,
            "system_s": spent.system_s,
            "efficiency": efficiency,
            "efficiency_peak": peak,
            "peak_window_s": PEAK_WINDOW_S,
            "context_switches_voluntary": spent.voluntary,
            "context_switches_involuntary": spent.involuntary,
            "threads_peak": self._highest.threads,
            "processes_peak": self._highest.processes,
            "main_s": main_s,
            "children_s": None if main_s is None else max(0.0, spent.cpu_s - main_s),
            "throttled_s": back.throttled_s,
            "runnable_mean": runs / elapsed_s if runs is not None and elapsed_s > 0 else None,
            "runqueue_s": queued_s,
            "iowait_s": self._waited.disks_s,
        }
