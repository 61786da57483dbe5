"""What psutil tells of a process tree where there is no /proc: on a macOS laptop."""

from __future__ import annotations

from contextlib import suppress

import psutil


def tree(root: int, count_root: bool) -> tuple[float, float, float, int, list[int]]:
    """User and system seconds of the living below `root`, MiB resident, threads, and who lives.

    The root's own seconds are not in it: getrusage tells them better.
    """
    user_s = system_s = rss_mib = 0.0
    threads, pids = 0, []
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(root)
        for process in [*([top] if count_root else []), *top.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times, memory = process.cpu_times(), process.memory_info()
                threads += process.num_threads()
                rss_mib += memory.rss / 2**20
                pids.append(process.pid)
                if process.pid != root:
                    user_s, system_s = user_s + times.user, system_s + times.system
    return user_s, system_s, rss_mib, threads, pids
