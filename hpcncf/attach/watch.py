"""Watch processes from outside for some seconds, by /proc and their cgroup.

It runs on compute nodes, in any Python from 3.11 on: standard library and `hpcncf.monitor` alone.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from hpcncf.attach import find
from hpcncf.attach.open_files import OpenFiles
from hpcncf.monitor import procfs
from hpcncf.monitor.cgroup import (
    cpu_limit,
    mask,
    memory_limit,
    on_node,
    pressure_between,
    read_counters,
    threads_per_core,
)
from hpcncf.monitor.node_cores import NodeSampler
from hpcncf.monitor.process_tree import Sample, Tree
from hpcncf.monitor.thread_waits import Blocked
from hpcncf.monitor.topology import nodes
from hpcncf.monitor.windows import Window

FORMAT: Final = 1
INTERVAL_S: Final = 0.5
WINDOW_S: Final = 1.0
# Looks at threads and at open files may take no more than this share of a core.
SHARE: Final = 0.01
# New steps of a job are looked for this often: without a cgroup it reads all of /proc.
FIND_EVERY_S: Final = 5.0
MOST_WORDS: Final = 60
MOST_TEXT: Final = 400
# Variables of the program that say what it was granted; no others leave the node.
VARIABLES: Final = ("SLURM_", "LSB_", "PBS_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_VISIBLE_")
ENDED: Final = "ZX"
FEW_LOOKS: Final = 2


@dataclass
class ThreadTimes:
    """CPU time of one thread, and its time ready without a core, while it was watched."""

    first_s: float
    last_s: float
    ran_from_s: float
    ready_from_s: float | None
    ran_to_s: float
    ready_to_s: float | None

    @property
    def ran_s(self) -> float:
        return self.ran_to_s - self.ran_from_s

    @property
    def ready_s(self) -> float | None:
        """Seconds in which the thread was ready but had no core; None if they are not counted."""
        if self.ready_to_s is None or self.ready_from_s is None:
            return None
        return self.ready_to_s - self.ready_from_s


@dataclass
class ProcessSeen:
    """Observations of one process."""

    parent: int
    command: list[str]
    user: int | None
    python: str | None
    states: Counter[str] = field(default_factory=Counter)
    """Looks at which its first thread was in each state of proc(5)."""
    cpu_from_s: float = 0.0
    cpu_to_s: float = 0.0
    threads: int = 0
    rss_mib: float = 0.0
    anonymous_mib: float = 0.0
    called_from: tuple[int, int] | None = None
    called_to: tuple[int, int] | None = None


class Watch:
    """Watches a process with all below it, or the processes that `more` finds."""

    def __init__(self, pids: list[int], more: Callable[[], list[int]] | None = None) -> None:
        """Begin to watch. `more`: returns the processes to watch, asked again every few seconds.

        Raises CannotWatch if there are none.
        """
        if not pids:
            raise find.CannotWatch(f"no process to watch on {os.uname().nodename}")
        self._more = more
        self.main = pids[0]
        # A shell that is watched has started this command: neither counts, nor what they start.
        self._tree = Tree(pids[0], without=frozenset({os.getpid()}))
        self._tree.follow(pids[1:])
        self._began_s = time.monotonic()
        self._started_at = datetime.now(UTC)
        self._processes: dict[int, ProcessSeen] = {}
        self._threads: dict[tuple[int, int], ThreadTimes] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._files = OpenFiles()
        self._blocked = Blocked()
        self._threads_at_s = self._files_at_s = self._find_at_s = self._window_at_s = 0.0
        self._peaks = [0.0, 0.0, 0, 0]
        self._ended_s: float | None = None
        self._age_s = procfs.age_s(self.main)
        self.sample = first = self._tree.sample()
        self._cpus = sorted({cpu for pid in first.pids for cpu in mask(pid)})
        self._node = NodeSampler(self._tree, self._cpus or None, siblings=False)
        self._windows: list[Window] = []
        self._before = self._tree.spent()
        self._counters = read_counters(pid=self.main)
        self._samples = [(0.0, first.cpu_s)]
        self._look(first, closely=True)

    def run(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Watch for some seconds, or until all processes have ended.

        `meanwhile` is called once between two looks. Ctrl-C ends the watch early.
        """
        try:
            while self._ended_s is None and (left := seconds - self.at_s()) > 0:
                time.sleep(min(INTERVAL_S, left))
                meanwhile()
                self._look(self._tree.sample())
        except KeyboardInterrupt:
            pass

    def at_s(self) -> float:
        return time.monotonic() - self._began_s

    def _look(self, sample: Sample, closely: bool = False) -> None:
        at_s, self.sample = self.at_s(), sample
        stats = self._tree.stats()
        if not any(stat.state not in ENDED for stat in stats.values()):
            self._ended_s = at_s
        for pid, stat in stats.items():
            one = self._processes.get(pid)
            cpu_s = stat.user_s + stat.system_s
            if one is None:
                one = self._processes[pid] = _describe(pid, stat.parent)
                # A process that began meanwhile has spent all its time in the watch.
                one.cpu_from_s = cpu_s if not self._windows and closely else 0.0
                one.called_from = procfs.called_bytes(pid)
            one.states[stat.state] += 1
            one.cpu_to_s = max(cpu_s, one.cpu_from_s)
            one.threads = max(one.threads, stat.threads)
            rss, anonymous = procfs.memory_mib(pid)
            one.rss_mib, one.anonymous_mib = (
                max(rss, one.rss_mib),
                max(anonymous, one.anonymous_mib),
            )
        self._blocked.look(sum(stat.state == "D" for stat in stats.values()), at_s)
        figures = (sample.rss_mib, sample.anonymous_mib, sample.threads, len(sample.pids))
        self._peaks = [max(pair) for pair in zip(self._peaks, figures, strict=True)]
        if closely or at_s >= self._threads_at_s:
            self._threads_at_s = at_s + self._costs(lambda: self._look_at_threads(at_s))
        if closely or at_s >= self._files_at_s:
            self._files_at_s = at_s + self._costs(
                lambda: self._files.look(self._busiest_first(stats))
            )
        if self._window_at_s == 0.0 or at_s >= self._window_at_s:
            if self._window_at_s:
                self._windows.append(self._node.sample(sample))
                self._samples.append((at_s, sample.cpu_s))
            self._window_at_s = at_s + WINDOW_S - INTERVAL_S / 2
        if self._more and at_s >= self._find_at_s:
            more = self._more
            self._find_at_s = at_s + max(
                FIND_EVERY_S, self._costs(lambda: self._tree.follow(find.roots(more())))
            )

    @staticmethod
    def _costs(work: Callable[[], None]) -> float:
        """Do the work; return the seconds after which it may be done again."""
        begun_s = time.thread_time()
        work()
        return (time.thread_time() - begun_s) / SHARE

    def _look_at_threads(self, at_s: float) -> None:
        begun = bool(self._threads)
        before_s = max((each.last_s for each in self._threads.values()), default=at_s)
        for key in self._tree.threads():
            found = procfs.scheduled_s(*key)
            if found is None:
                stat = procfs.stat(f"/proc/{key[0]}/task/{key[1]}")
                if stat is None:
                    continue
                ran_s, ready_s = stat.user_s + stat.system_s, None
            else:
                ran_s, ready_s = found
            one = self._threads.get(key)
            if one is None:
                from_s, ready_from_s = (0.0, 0.0) if begun else (ran_s, ready_s)
                first_s = before_s if begun else at_s
                self._threads[key] = ThreadTimes(
                    first_s, at_s, from_s, ready_from_s, ran_s, ready_s
                )
            else:
                one.last_s, one.ran_to_s, one.ready_to_s = at_s, ran_s, ready_s
                if one.ready_from_s is None and one.ready_to_s is not None:
                    # It had never run: the kernel reports zeros then.
                    one.ready_from_s = 0.0

    def busiest(self, most: int) -> list[int]:
        """Return the Python processes of the tree so far, those with the most CPU time first."""
        living = set(self.sample.pids)
        found = [
            pid for pid, one in self._processes.items() if one.python is not None and pid in living
        ]
        return self._busiest_first(found)[:most]

    def python_of(self, pid: int) -> str:
        """Return `3.14`, the Python that a process runs; empty if it is not known."""
        return self._processes[pid].python or ""

    def is_worker(self, pid: int) -> bool:
        """Return whether another Python process has made this one, as a DataLoader its workers."""
        one = self._processes[pid]
        parent = self._processes.get(one.parent)
        if any("multiprocessing" in word for word in one.command):
            return True
        return parent is not None and parent.python == one.python and parent.command == one.command

    def _busiest_first(self, pids: Iterable[int]) -> list[int]:
        return sorted(pids, key=lambda pid: -self._spent_s(pid))

    def _spent_s(self, pid: int) -> float:
        return self._processes[pid].cpu_to_s - self._processes[pid].cpu_from_s

    def result(self) -> dict[str, Any]:
        """Return all figures as JSON has them."""
        self._look(self._tree.sample(), closely=True)
        elapsed_s = self.at_s() if self._ended_s is None else self._ended_s
        spent, before = self._tree.spent(), self._before
        self._windows.append(self._node.sample(self.sample))
        self._samples.append((elapsed_s, self.sample.cpu_s))
        back = pressure_between(self._counters, read_counters(pid=self.main))
        quota, limit = cpu_limit(pid=self.main), memory_limit(pid=self.main)
        ready = [each.ready_s for each in self._threads.values()]
        known = [each for each in ready if each is not None]
        cpus = self._cpus
        for pid, one in self._processes.items():
            one.called_to = procfs.called_bytes(pid) or one.called_to
        return {
            "format": FORMAT,
            "node": os.uname().nodename,
            "main": self.main,
            "started_at": self._started_at.isoformat(timespec="milliseconds"),
            "elapsed_s": elapsed_s,
            "ended": self._ended_s is not None,
            "age_s": self._age_s,
            "variables": self._variables(),
            "cores": {
                "usable": min(float(len(cpus)), quota.value if quota else float("inf")),
                "cpus": cpus,
                "quota": quota.value if quota else None,
                "threads_per_core": threads_per_core(),
                "on_node": on_node(),
                "numa_nodes": nodes(cpus),
            },
            "cpu": {
                "user_s": max(0.0, spent.user_s - before.user_s),
                "system_s": max(0.0, spent.system_s - before.system_s),
                "context_switches_voluntary": max(0, spent.voluntary - before.voluntary),
                "context_switches_involuntary": max(0, spent.involuntary - before.involuntary),
                "threads_peak": self._peaks[2],
                "processes_peak": self._peaks[3],
                "throttled_s": back.throttled_s,
                "runqueue_s": sum(known) if known else None,
            },
            "memory": {
                "rss_peak_mib": self._peaks[0],
                "anonymous_peak_mib": self._peaks[1],
                "limit_mib": limit.value if limit else None,
                "major_faults": max(0, spent.major_faults - before.major_faults),
                "pressure_s": back.memory_s,
                "swap_peak_mib": self._tree.swapped_mib() if procfs.has_swap() else 0.0,
            },
            "io": {
                "read_mib": self._stored_mib(spent.read_bytes - before.read_bytes),
                "write_mib": self._stored_mib(spent.write_bytes - before.write_bytes),
                "pressure_s": back.io_s,
                "blocked_s": self._blocked.total_s,
            },
            "samples": [[at_s, cpu_s - self._samples[0][1]] for at_s, cpu_s in self._samples],
            "windows": [asdict(window) for window in self._windows],
            "node_cpus": self._node.cpus,
            "processes": self._described(),
            "files": self._files.summary(),
            "unseen": self._unseen(known),
            "notes": self._notes(),
            "observer_cpu_s": time.process_time(),
        }

    def _stored_mib(self, moved_bytes: int) -> float | None:
        """Return MiB read from or written to storage; None if no process's account may be read."""
        if all(one.called_from is None for one in self._processes.values()):
            return None
        return max(0, moved_bytes) / 2**20

    def _variables(self) -> dict[str, str]:
        own = find.environment(self.main)
        return {name: value for name, value in own.items() if name.startswith(VARIABLES)}

    def _described(self) -> list[dict[str, Any]]:
        by_process: dict[int, list[tuple[int, ThreadTimes]]] = {}
        for (pid, thread), times in self._threads.items():
            by_process.setdefault(pid, []).append((thread, times))
        found = []
        for pid, one in self._processes.items():
            threads = sorted(by_process.get(pid, []), key=lambda each: -each[1].ran_s)
            ready = [each.ready_s for _, each in threads if each.ready_s is not None]
            called = None
            if one.called_to and one.called_from:
                called = [b - a for a, b in zip(one.called_from, one.called_to, strict=True)]
            found.append(
                {
                    "pid": pid,
                    "parent": one.parent,
                    "command": one.command,
                    "user": one.user,
                    "python": one.python,
                    "states": dict(one.states),
                    "cpu_s": self._spent_s(pid),
                    "ready_s": sum(ready) if ready else None,
                    "threads": one.threads,
                    "rss_mib": round(one.rss_mib, 1),
                    "anonymous_mib": round(one.anonymous_mib, 1),
                    "read_bytes": max(0, called[0]) if called else None,
                    "written_bytes": max(0, called[1]) if called else None,
                    "busiest": [
                        {
                            "thread": thread,
                            "name": find.thread_name(pid, thread),
                            "seen_s": max(0.0, times.last_s - times.first_s),
                            "ran_s": times.ran_s,
                            "ready_s": times.ready_s,
                        }
                        for at, (thread, times) in enumerate(threads)
                        if at < MOST_THREADS or thread == pid
                    ],
                }
            )
        return sorted(found, key=lambda each: (-each["cpu_s"], each["pid"]))

    def _unseen(self, ready: Iterable[float]) -> list[str]:
        """Say what could not be seen, one sentence each, and what would allow it."""
        found = []
        stats = self._tree.stats()
        hidden = {
            self._processes[pid].user
            for pid, stat in stats.items()
            if stat.state not in ENDED
            and procfs.called_bytes(pid) is None
            and find.owner(pid) is not None  # it has not ended meanwhile
        }
        if others := sorted(user for user in hidden if user not in (None, os.geteuid())):
            names = ", ".join(find.user_name(each) for each in others if each is not None)
            found.append(
                f"files, storage and environment: the program belongs to {names}; that user, or "
                "root, can see them"
            )
        elif hidden:
            found.append(
                "files, storage and environment: the program has more rights than this command, "
                "as in a container without --cap-add=SYS_PTRACE; root of the machine can see them"
            )
        if not list(ready):
            found.append(
                "how long threads were ready without a core: this kernel does not count it "
                "(CONFIG_SCHED_INFO)"
            )
        if self._files.is_cut:
            found.append(
                "some of the open files: there are too many to read all of them; those of the "
                "busiest processes were read"
            )
        return found

    def _notes(self) -> list[str]:
        """Say what a reader of the figures has to know of the processes' states."""
        found = []
        for pid, one in self._processes.items():
            looks = sum(one.states.values())
            if one.states["T"] + one.states["t"] == looks:
                found.append(
                    f"process {pid} is stopped (SIGSTOP, Ctrl-Z or a debugger): "
                    f"`kill -CONT {pid}` lets it go on"
                )
            elif one.states["D"] >= 0.8 * looks and looks > FEW_LOOKS:
                found.append(f"process {pid} waits for a disk or a file server (state D)")
            elif one.states["Z"] == looks > FEW_LOOKS:  # else its parent is about to wait for it
                found.append(
                    f"process {pid} has ended, and its parent, process {one.parent}, has not "
                    "waited for it"
                )
        if self._ended_s is not None:
            found.append(f"it ended {self._ended_s:.1f} s after the watch began")
        return found[:MOST_NOTES] + (
            [f"and {len(found) - MOST_NOTES} more such processes"]
            if len(found) > MOST_NOTES
            else []
        )


MOST_THREADS: Final = 32
MOST_NOTES: Final = 6


def _describe(pid: int, parent: int) -> ProcessSeen:
    words = procfs.command(pid).decode(errors="replace").split("\0")
    words = [word[:MOST_TEXT] for word in words[:MOST_WORDS] if word]
    words = words or [f"[{find.comm(pid).decode(errors='replace')}]"]
    return ProcessSeen(parent, words, find.owner(pid), find.python_version(pid))
