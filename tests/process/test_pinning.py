"""Two ranks bind themselves to cores of their own."""

from __future__ import annotations

import os
import threading

import pytest
from ranks_together import together

from hpcncf.launcher.environment import Place
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.monitor.topology import cores
from hpcncf.ncf.distributed import pin_rank


def bound(rank: int, widest: list[int]) -> tuple[list[int], list[int]]:
    """The masks of a rank and of a thread that it had already."""
    os.sched_setaffinity(0, widest)
    found, seen, go = list[int](), threading.Event(), threading.Event()

    def other() -> None:
        seen.set()
        go.wait()
        found.extend(usable_cpus())

    thread = threading.Thread(target=other)
    thread.start()
    seen.wait()
    pin_rank(1, Place(rank=rank, local_rank=rank, world_size=2, local_world_size=2))
    go.set()
    thread.join()
    return usable_cpus(), found


@pytest.mark.skipif(len(cores(usable_cpus())) < 2, reason="needs two cores")
def test_two_ranks_bind_themselves_with_all_their_threads() -> None:
    may_use = usable_cpus()
    first, second = together(2, bound, may_use)
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert len(first[0]) == len(second[0]) == 1
    assert set(first[0]) | set(second[0]) <= set(may_use)
    assert first[0] != second[0]
