"""How busy each core of the node is, with its memory, disks and network, as a series."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from hpcncf.monitor import procfs
from hpcncf.monitor.cgroup import mask, processes, step
from hpcncf.monitor.gpu import open_gpus
from hpcncf.monitor.node_traffic import disk_mib, network_mib
from hpcncf.monitor.process_tree import Sample, Tree
from hpcncf.monitor.windows import Window


@dataclass(frozen=True)
class NodeCounters:
    """The node's counters at one moment; all but `memory_used_mib` only grow."""

    at_s: float
    busy_s: dict[int, float]
    steal_s: dict[int, float]
    memory_used_mib: float
    network_mib: float
    loopback_mib: float
    disk_mib: float


def read_counters() -> NodeCounters:
    at_s = time.monotonic()
    return NodeCounters(at_s, *cpu_times(), _memory_used_mib(), *network_mib(), disk_mib())


def cpu_times(text: bytes | None = None) -> tuple[dict[int, float], dict[int, float]]:
    """Read the busy and the stolen seconds of each CPU since boot, from /proc/stat (proc(5)).

    Busy is user, nice, system, irq and softirq: not waiting for disks, not what the hypervisor
    took. Guests are within user.
    """
    busy_s, steal_s = {}, {}
    for line in (procfs.read_file("/proc/stat") if text is None else text).splitlines():
        words = line.split()
        if words and words[0].startswith(b"cpu") and words[0] != b"cpu":
            cpu, ticks = int(words[0][3:]), [int(word) for word in words[1:9]]
            busy_s[cpu] = (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) * procfs.TICK_S
            steal_s[cpu] = ticks[7] * procfs.TICK_S
    return busy_s, steal_s


def _memory_used_mib() -> float:
    """Return the node's used memory in MiB; caches that can be dropped do not count."""
    lines = procfs.read_file("/proc/meminfo").splitlines()
    kib = {name: int(value.split()[0]) for name, value in (line.split(b":") for line in lines)}
    return (kib[b"MemTotal"] - kib[b"MemAvailable"]) / 1024


class NodeSampler:
    """The node seen from one rank: its tree, those of the run's other ranks, and their CPUs."""

    def __init__(self, tree: Tree, cpus: list[int] | None = None, siblings: bool = True) -> None:
        """Start watching the node.

        `cpus` None means all CPUs that the ranks on this node may use together. With `siblings`
        the run's other ranks on this node are followed, too.
        """
        self._pid = tree.root
        self._siblings = siblings
        self._trees = {tree.root: tree}
        self._cpu_s: dict[int, float] = {}
        self._threads: dict[tuple[int, int], float] = {}
        self._parents_threads: list[int] = []
        self._step = step()
        self.gpus = open_gpus()
        self._started_s = time.monotonic()
        self._last = read_counters()
        self._follow_siblings()
        self.cpus = cpus or sorted(set().union(*map(mask, self._trees)))
        self._grown_s(self._samples(tree.sample()))
        self._ran_on()

    def sample(self, own: Sample) -> Window:
        """Return the figures since the last sample; `own` is a fresh sample of this rank's tree."""
        self._follow_siblings()
        samples = self._samples(own)
        tree_cpu_s = self._grown_s(samples)
        ran = self._ran_on()
        now, last = read_counters(), self._last
        self._last = now
        pids = {pid for sample in samples.values() for pid in sample.pids}
        length_s = now.at_s - last.at_s
        busy_s = tuple(now.busy_s.get(c, 0.0) - last.busy_s.get(c, 0.0) for c in self.cpus)
        return Window(
            start_s=last.at_s - self._started_s,
            length_s=length_s,
            busy_s=busy_s,
            ours_s=shared_out(tuple(ran.get(c, 0.0) for c in self.cpus), busy_s, tree_cpu_s),
            steal_s=sum(now.steal_s.get(c, 0.0) - last.steal_s.get(c, 0.0) for c in self.cpus),
            tree_cpu_s=tree_cpu_s,
            network_mib=now.network_mib - last.network_mib,
            loopback_mib=now.loopback_mib - last.loopback_mib,
            disk_mib=now.disk_mib - last.disk_mib,
            rss_mib=sum(sample.rss_mib for sample in samples.values()),
            anonymous_mib=sum(sample.anonymous_mib for sample in samples.values()),
            memory_used_mib=now.memory_used_mib,
            gpus=tuple(gpu.sample(pids, length_s) for gpu in self.gpus),
        )

    def _follow_siblings(self) -> None:
        """Find the run's other ranks on this node: same parent, same command line.

        Our launcher, srun and torchrun all start ranks that way. Under Slurm a rank may have a
        parent of its own (a container, a script, a task of several runs): there, processes of
        the same step count as well.
        """
        parent = os.getppid()
        stat = procfs.stat(f"/proc/{parent}")
        if not self._siblings or stat is None:
            return
        if len(self._parents_threads) != stat.threads:
            self._parents_threads = procfs.thread_ids(parent)
        of_step = processes(self._step) if self._step else []
        for pid in [*procfs.children(parent, self._parents_threads), *of_step]:
            if pid not in self._trees and procfs.command(pid) == procfs.command(self._pid):
                self._trees[pid] = Tree(pid)

    def _samples(self, own: Sample) -> dict[int, Sample]:
        first, *others = self._trees
        return {first: own} | {pid: self._trees[pid].sample() for pid in others}

    def _grown_s(self, samples: dict[int, Sample]) -> float:
        """Return the CPU seconds of the run's ranks on this node since the last call.

        A newly found rank counts from now on.
        """
        grown = sum(
            sample.cpu_s - self._cpu_s.get(pid, sample.cpu_s) for pid, sample in samples.items()
        )
        self._cpu_s = {pid: sample.cpu_s for pid, sample in samples.items()}
        return grown

    def _ran_on(self) -> dict[int, float]:
        """Return the run's seconds on each CPU since the last call: CPU -> seconds.

        A thread's time is attributed to the CPU that it used last.
        """
        ran: dict[int, float] = {}
        threads: dict[tuple[int, int], float] = {}
        for tree in self._trees.values():
            for pid, thread in tree.threads():
                stat = procfs.stat(f"/proc/{pid}/task/{thread}")
                if stat is not None:
                    total = stat.user_s + stat.system_s
                    threads[pid, thread] = total
                    spent = max(0.0, total - self._threads.get((pid, thread), 0.0))
                    ran[stat.processor] = ran.get(stat.processor, 0.0) + spent
        self._threads = threads
        return ran


def shared_out(
    ran_s: tuple[float, ...], busy_s: tuple[float, ...], tree_cpu_s: float
) -> tuple[float, ...]:
    """Estimate the run's CPU seconds on each CPU, including processes that were never seen.

    A process that started and ended between two samples leaves no trace of where it ran. Its
    time is distributed over the CPUs in proportion to their busy time that is unaccounted for.
    """
    seen = tuple(min(ran, busy) for ran, busy in zip(ran_s, busy_s, strict=True))
    rest = tuple(busy - ran for ran, busy in zip(seen, busy_s, strict=True))
    unseen = max(0.0, min(tree_cpu_s - sum(seen), sum(rest)))
    if unseen == 0.0:
        return seen
    return tuple(ran + unseen * free / sum(rest) for ran, free in zip(seen, rest, strict=True))
