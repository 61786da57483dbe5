"""Read figures of processes and threads from `/proc`."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# A kernel may be built without CONFIG_PROC_CHILDREN.
HAS_CHILDREN = bool(list(Path("/proc/self/task").glob("*/children")))
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20

# PyDLL keeps the GIL during the call. Python's own read() gives it up, and a thread that does so
# beside one that computes waits 5 ms to get it back: a sample of 100 files took half a second,
# and each handover cost the computing thread a switch. These reads take microseconds each.
_libc = ctypes.PyDLL(None, use_errno=True)


def read_file(path: str) -> bytes:
    """Read a file's bytes; empty if it does not exist or may not be read."""
    descriptor = _libc.open(path.encode(), os.O_RDONLY | os.O_CLOEXEC)
    if descriptor < 0:
        return b""
    try:
        return b"".join(iter(lambda: _chunk(descriptor), b""))
    finally:
        _libc.close(descriptor)


def _chunk(descriptor: int) -> bytes:
    buffer = ctypes.create_string_buffer(16384)
    count = _libc.read(descriptor, buffer, len(buffer))
    return ctypes.string_at(buffer, count) if count > 0 else b""


class Stat(NamedTuple):
    """Figures of /proc/<pid>/stat and /proc/<pid>/task/<tid>/stat, in seconds (proc(5))."""

    state: str
    """`R` on a CPU or ready for one, `S` asleep, `D` waiting for a disk or a file server, ...;
    of a process, its first thread's."""
    parent: int
    user_s: float
    system_s: float
    waited_user_s: float
    """Of the children that ended and were waited for, and of theirs."""
    waited_system_s: float
    threads: int
    started: int
    """Ticks since boot: with the number it names a process for good."""
    processor: int
    """The CPU it ran on last."""
    major_faults: int
    """Of the whole process and the children it waited for: pages that a disk had to give."""
    disk_wait_s: float
    """Of one thread, a process's first: waiting for block devices, where the kernel counts that."""


def stat(folder: str) -> Stat | None:
    """Read the figures of a process or thread; None if it has ended.

    `folder` is `/proc/<pid>` or `/proc/<pid>/task/<tid>`.
    """
    text = read_file(f"{folder}/stat")
    # The name in parentheses may hold blanks and parentheses itself.
    words = text[text.rfind(b")") + 2 :].split()
    if len(words) < 40:
        return None
    return Stat(
        words[0].decode(),
        int(words[1]),
        int(words[11]) * TICK_S,
        int(words[12]) * TICK_S,
        int(words[13]) * TICK_S,
        int(words[14]) * TICK_S,
        int(words[17]),
        int(words[19]),
        int(words[36]),
        int(words[9]) + int(words[10]),
        int(words[39]) * TICK_S,
    )


def thread_ids(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return []


def runqueue_s(pid: int, thread: int) -> float | None:
    """Return the seconds that a thread was ready but had no CPU (kernel: sched-stats.rst).

    None when it is gone, and where the kernel keeps no account: it reports only zeros then.
    """
    found = scheduled_s(pid, thread)
    return found[1] if found else None


def scheduled_s(pid: int, thread: int) -> tuple[float, float] | None:
    """Return the seconds that a thread was on a CPU, and those that it was ready without one.

    None when it is gone, and where the kernel keeps no account.
    """
    words = read_file(f"/proc/{pid}/task/{thread}/schedstat").split()
    if len(words) != 3 or not int(words[2]):
        return None
    return int(words[0]) * 1e-9, int(words[1]) * 1e-9


def counts_disk_waits() -> bool | None:
    """Return whether the kernel counts disk waits, in field 42 of a stat; None if unknown.

    Since Linux 5.14 it counts them only if asked to (accounting/delay-accounting.rst). Older
    kernels do not tell.
    """
    enabled = read_file("/proc/sys/kernel/task_delayacct").strip()
    return enabled == b"1" if enabled else None


def has_swap() -> bool:
    return len(read_file("/proc/swaps").splitlines()) > 1


def swapped_mib(pid: int) -> float:
    for line in read_file(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"VmSwap:"):
            return int(line.split()[1]) / 1024
    return 0.0


def memory_mib(pid: int) -> tuple[float, float]:
    """Return a process's resident and anonymous memory, in MiB; zero for a zombie.

    Anonymous memory is resident memory without files and shared memory.
    """
    words = read_file(f"/proc/{pid}/statm").split()
    if len(words) < 3:
        return 0.0, 0.0
    resident, shared = int(words[1]), int(words[2])
    return resident * PAGE_MIB, (resident - shared) * PAGE_MIB


def command(pid: int) -> bytes:
    """Return the command line of a process; each argument ends with a zero byte."""
    return read_file(f"/proc/{pid}/cmdline")


def children(pid: int, threads: list[int]) -> list[int]:
    """Return the child processes of these threads of `pid`.

    Processes that `pid` inherited as subreaper are included.
    """
    found: list[int] = []
    for thread in threads:
        found += map(int, read_file(f"/proc/{pid}/task/{thread}/children").split())
    return found


def children_by_scan() -> Callable[[int, list[int]], list[int]]:
    """Return a function like `children`, from one slow reading of all processes."""
    by_parent: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        found = stat(f"/proc/{name}") if name.isdigit() else None
        if found is not None:
            by_parent.setdefault(found.parent, []).append(int(name))
    return lambda pid, _threads: by_parent.get(pid, [])


def context_switches(pid: int) -> tuple[int, int]:
    """Count voluntary and involuntary context switches of the process's living threads."""
    voluntary = involuntary = 0
    for thread in thread_ids(pid):
        for line in read_file(f"/proc/{pid}/task/{thread}/status").splitlines():
            if line.startswith(b"voluntary_ctxt_switches"):
                voluntary += int(line.split()[1])
            elif line.startswith(b"nonvoluntary_ctxt_switches"):
                involuntary += int(line.split()[1])
    return voluntary, involuntary


def storage_bytes(pid: int) -> tuple[int, int] | None:
    """Return bytes read from and written to storage; None for another user's process.

    Children that were waited for are included.
    """
    return _io_counters(pid, b"read_bytes", b"write_bytes")


def called_bytes(pid: int) -> tuple[int, int] | None:
    """Return the bytes that a process has passed to its read and write calls; None if unknown.

    They came from memory or from storage. Pipes and sockets are included, as are children that were
    waited for.
    """
    return _io_counters(pid, b"rchar", b"wchar")


def _io_counters(pid: int, *names: bytes) -> tuple[int, int] | None:
    values = dict(line.split(b": ") for line in read_file(f"/proc/{pid}/io").splitlines())
    if not all(name in values for name in names):
        return None
    read, written = (int(values[name]) for name in names)
    return read, written


def age_s(pid: int) -> float:
    """Return the seconds since the process started, to one clock tick; 0 if it has ended.

    psutil's create_time is off by up to a second: it adds a boot time in whole seconds.
    """
    found = stat(f"/proc/{pid}")
    if found is None:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - found.started * TICK_S)
