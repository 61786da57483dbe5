"""CPU time and memory of a process tree, ended children included."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace

from hpcncf.monitor import procfs
from hpcncf.monitor.procfs import Stat

# A process's times as the kernel keeps them hold those of every child that it waited for. So the
# sum over the living (a zombie is one: nobody has waited for it yet) counts each second exactly
# once. Two things would break that, and are mended here. A child that ends while the tree is being
# read: parents are read before their children, so it can be missed for one sample and never be
# counted twice; a total never falls below the last. And a child for which nobody in the tree waits
# (SIGCHLD ignored, or an orphan that init took): its parent's account did not grow by its time,
# which is then kept as `lost`.

# Each clock is cut to a tick, so a child's account may exceed what its parent's grew by.
SLACK_S = 3 * procfs.TICK_S
# getrusage: kilobytes for memory on Linux, blocks of 512 bytes for storage.
BLOCK_BYTES = 512


@dataclass(frozen=True)
class Spent:
    """CPU seconds, context switches, storage and page faults of a tree since its start."""

    user_s: float = 0.0
    system_s: float = 0.0
    voluntary: int = 0
    involuntary: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    major_faults: int = 0

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Spent) -> Spent:
        return Spent(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Sample:
    """A tree at one moment. `pids` are the living, the root included where it is counted."""

    user_s: float = 0.0
    system_s: float = 0.0
    rss_mib: float = 0.0
    anonymous_mib: float = 0.0
    threads: int = 0
    pids: tuple[int, ...] = ()

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


@dataclass
class _Known:
    """A process of the tree, with its figures and threads when it was last sampled."""

    stat: Stat
    threads: list[int] = field(default_factory=list)

    @property
    def own(self) -> tuple[float, float]:
        stat = self.stat
        return stat.user_s + stat.waited_user_s, stat.system_s + stat.waited_system_s

    @property
    def waited_s(self) -> float:
        return self.stat.waited_user_s + self.stat.waited_system_s


class Tree:
    """The process `root` and all below it, read anew by `sample`.

    Without `count_root` the root is only the one that waits: what `hpcncf run` measures is its
    children, not itself. `before` is what this process's own account held already when the
    measurement began, and is taken off. `without`: processes that do not count, nor what they
    start.
    """

    def __init__(
        self,
        root: int,
        count_root: bool = True,
        before: Spent | None = None,
        without: frozenset[int] = frozenset(),
    ) -> None:
        self.root = root
        self.count_root = count_root
        self._before = before or Spent()
        self._without = without
        self._also: list[int] = []
        self._known: dict[int, _Known] = {}
        self._lost = [0.0, 0.0]
        self._total = [0.0, 0.0]

    def sample(self) -> Sample:
        account = self._account()  # before any child is read: see the module's opening
        last, self._known = self._known, self._walk()
        self._keep_lost(last)
        user_s, system_s = self._sum(account)
        if user_s + system_s > sum(self._total):
            self._total = [user_s, system_s]
        pids = self._counted()
        threads = sum(self._known[pid].stat.threads for pid in pids)
        return Sample(self._total[0], self._total[1], *self.memory_mib(), threads, pids)

    def follow(self, pids: Iterable[int]) -> None:
        """Count further processes, and all below them, from the next sample on."""
        self._also += pids

    def stats(self) -> dict[int, Stat]:
        """Return the figures of each living process, as of the last sample."""
        return {pid: self._known[pid].stat for pid in self._counted()}

    def _counted(self) -> tuple[int, ...]:
        return tuple(pid for pid in self._known if self.count_root or pid != self.root)

    def memory_mib(self) -> tuple[float, float]:
        """Resident and anonymous memory of the last sample's processes, in MiB."""
        rss = anonymous = 0.0
        for pid in self._counted():
            resident, private = procfs.memory_mib(pid)
            rss, anonymous = rss + resident, anonymous + private
        return rss, anonymous

    def blocked(self) -> int:
        """Count the processes of the last sample that wait for a disk or a file server."""
        stats = (procfs.stat(f"/proc/{pid}") for pid in self._counted())
        return sum(1 for stat in stats if stat and stat.state == "D")

    def swapped_mib(self) -> float:
        """Swapped-out memory of the last sample's processes, in MiB."""
        return sum(procfs.swapped_mib(pid) for pid in self._counted())

    def spent(self) -> Spent:
        """Measure all resources that the tree has used, including those of living descendants.

        Too slow for every second: the switches are in one file per thread.
        """
        sample = self.sample()
        account = self._account()
        living = [
            _measure_process(pid) for pid in sample.pids if account is None or pid != self.root
        ]
        total = sum(living, account or Spent())
        return replace(total, user_s=sample.user_s, system_s=sample.system_s)

    def threads(self) -> Iterator[tuple[int, int]]:
        """Yield the process id and thread id of every thread in the last sample."""
        for pid, known in self._known.items():
            if self.count_root or pid != self.root:
                for thread in known.threads:
                    yield pid, thread

    def _account(self) -> Spent | None:
        """Return the kernel's exact account (getrusage); None if the root is another process."""
        if self.root != os.getpid():
            return None
        return (own() + waited() if self.count_root else waited()) - self._before

    def _sum(self, account: Spent | None) -> tuple[float, float]:
        user_s, system_s = self._lost
        if account is not None:
            user_s, system_s = user_s + account.user_s, system_s + account.system_s
        for pid, known in self._known.items():
            if account is None or pid != self.root:
                user, system = known.own
                user_s, system_s = user_s + user, system_s + system
        return user_s, system_s

    def _walk(self) -> dict[int, _Known]:
        """Return the figures of every process of the tree, parents first: process id -> figures.

        Those known stay in it for good, though their parent may have ended and left them to init.
        """
        found: dict[int, _Known] = {}
        queue = [self.root, *self._also, *self._known]
        self._also = []  # known from now on, by their start, too
        below = procfs.children if procfs.HAS_CHILDREN else procfs.children_by_scan()
        for pid in queue:  # grows as children are found
            if pid in found or pid in self._without:
                continue
            stat = procfs.stat(f"/proc/{pid}")
            known = self._known.get(pid)
            if stat is None or (known and known.stat.started != stat.started):
                continue
            threads = known.threads if known else []
            if len(threads) != stat.threads:  # listing them costs more than all else here
                threads = procfs.thread_ids(pid)
            found[pid] = _Known(stat, threads)
            queue += below(pid, threads)
        return found

    def _keep_lost(self, last: dict[int, _Known]) -> None:
        """Add the time of processes that vanished before anybody in the tree waited for them."""
        gone: dict[int, list[_Known]] = {}
        for pid, known in last.items():
            if pid not in self._known:
                gone.setdefault(self._heir(known, last), []).append(known)
        for heir, dead in gone.items():
            missing = sum(sum(known.own) for known in dead)
            # By how much its account of waited-for children grew, read after the dead were missed.
            if now := procfs.stat(f"/proc/{heir}") if heir else None:
                missing -= now.waited_user_s + now.waited_system_s - last[heir].waited_s
            if missing > SLACK_S * len(dead):
                share = missing / sum(sum(known.own) for known in dead)
                self._lost[0] += share * sum(known.own[0] for known in dead)
                self._lost[1] += share * sum(known.own[1] for known in dead)

    def _heir(self, dead: _Known, last: dict[int, _Known]) -> int:
        """Return the process id of the nearest living ancestor in the tree, or 0."""
        pid = dead.stat.parent
        while pid in last and pid not in self._known:
            pid = last[pid].stat.parent
        return pid if pid in self._known and pid in last else 0


def _measure_process(pid: int) -> Spent:
    """Measure a process's context switches, storage and page faults, but not its CPU time."""
    voluntary, involuntary = procfs.context_switches(pid)
    read_bytes, write_bytes = procfs.storage_bytes(pid) or (0, 0)
    stat = procfs.stat(f"/proc/{pid}")
    faults = stat.major_faults if stat else 0
    return Spent(0.0, 0.0, voluntary, involuntary, read_bytes, write_bytes, faults)


def own() -> Spent:
    return _usage(resource.RUSAGE_SELF)


def waited() -> Spent:
    """Return the resources used by children of this process that ended and were waited for."""
    return _usage(resource.RUSAGE_CHILDREN)


def _usage(who: int) -> Spent:
    usage = resource.getrusage(who)
    return Spent(
        usage.ru_utime,
        usage.ru_stime,
        usage.ru_nvcsw,
        usage.ru_nivcsw,
        usage.ru_inblock * BLOCK_BYTES,
        usage.ru_oublock * BLOCK_BYTES,
        usage.ru_majflt,
    )
