"""Which cores each rank of a node binds itself to, and that it does."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks_together import together
from test_numa import DEALT, SIBLINGS_IN_A_ROW, TWO_SOCKETS, Shape, machine

from hpcncf.errors import HpcncfError
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.monitor.node import Core, cores
from hpcncf.ncf.distributed import pin_rank
from hpcncf.worker import pinning
from hpcncf.worker.environment import Place
from hpcncf.worker.pinning import How

ALL = list(range(16))


def shares(
    root: Path, shape: Shape, how: How, each: int, masks: Sequence[Sequence[int]]
) -> list[list[int]]:
    found = cores({cpu for mask in masks for cpu in mask}, machine(root, shape))
    return pinning.shares(how, masks, each, found)


@pytest.mark.parametrize(
    ("how", "each", "masks", "expected"),
    [
        ("cores", 2, [ALL, ALL], [[0, 1], [2, 3]]),  # nobody bound them
        ("cores", 3, [ALL, ALL], [[0, 1, 2], [3, 4, 5]]),  # the second on both sockets
        ("numa", 3, [ALL, ALL], [[0, 1, 2], [4, 5, 6]]),
        ("numa", 2, [ALL] * 4, [[0, 1], [4, 5], [2, 3], [6, 7]]),
        ("cores", 1, [[0, 8], [1, 9]], [[0], [1]]),  # as srun binds to cores
        ("cores", 1, [[0, 1], [0]], [[1], [0]]),  # the first has another, the second has not
        ("numa", 2, [[2, 3, 4, 5, 6], [0, 1]], [[4, 5], [0, 1]]),
        ("numa", 1, [[0], [1]], [[0], [1]]),  # bound already, both on one node
    ],
)
def test_each_rank_has_cores_of_its_own_within_what_it_may_use(
    tmp_path: Path, how: How, each: int, masks: list[list[int]], expected: list[list[int]]
) -> None:
    assert shares(tmp_path, TWO_SOCKETS, how, each, masks) == expected


@pytest.mark.parametrize(
    ("shape", "how", "each", "masks", "why"),
    [
        (TWO_SOCKETS, "cores", 2, [[0, 8]], "are 1 core, of 2 hardware threads each"),
        (TWO_SOCKETS, "cores", 1, [[0], [8]], "2 ranks of this node with 1 core each"),
        (TWO_SOCKETS, "cores", 5, [ALL, ALL], "0-15 that they may use are 8 cores"),
        (TWO_SOCKETS, "numa", 5, [ALL], "are 8 cores, of 2 hardware threads each on 2 NUMA nodes"),
        (TWO_SOCKETS, "numa", 3, [ALL] * 3, "on 2 NUMA nodes"),
        (SIBLINGS_IN_A_ROW, "cores", 1, [[0], [1]], "whole cores"),
        (DEALT, "numa", 2, [[0, 1]], "on 2 NUMA nodes"),
    ],
)
def test_too_few_cores_are_refused_with_what_there_is(
    tmp_path: Path, shape: Shape, how: How, each: int, masks: list[list[int]], why: str
) -> None:
    with pytest.raises(HpcncfError, match=why):
        shares(tmp_path, shape, how, each, masks)


@pytest.mark.parametrize(
    ("shape", "how", "expected"),
    [
        (SIBLINGS_IN_A_ROW, "cores", [0, 2, 4, 6]),  # its first four CPUs are two cores
        (TWO_SOCKETS, "numa", [0, 1, 4, 5]),
        (DEALT, "numa", [0, 2, 1, 3]),
    ],
)
def test_a_run_alone_on_a_machine_is_given_the_cores_that_its_ranks_will_choose(
    tmp_path: Path, shape: Shape, how: How, expected: list[int]
) -> None:
    found = cores(shape, machine(tmp_path, shape))
    assert pinning.in_order(how, 2, 2, found) == expected
    assert pinning.in_order(how, 9, 2, found) == sorted(shape)


MASKS = st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=4)


@given(MASKS, st.integers(1, 3), st.sampled_from(["cores", "numa"]))
def test_no_share_widens_what_a_rank_may_use_or_touches_anothers_core(
    masks: list[set[int]], each: int, how: How
) -> None:
    """Six cores of two hardware threads, on two nodes."""
    known = set().union(*masks)
    cores = [Core(tuple({at, at + 6} & known), at // 3) for at in range(6)]
    found = [core for core in cores if core.cpus]
    try:
        given_out = pinning.shares(how, [sorted(mask) for mask in masks], each, found)
    except HpcncfError:
        return
    for mask, share in zip(masks, given_out, strict=True):
        assert len(share) == each
        assert set(share) <= mask
        assert how == "cores" or len({cpu % 6 // 3 for cpu in share}) == 1
    taken = [cpu % 6 for share in given_out for cpu in share]
    assert len(taken) == len(set(taken))


def test_openmps_own_binding_is_refused() -> None:
    with pytest.raises(HpcncfError, match="OMP_PROC_BIND=close binds threads as well: unset it"):
        pinning.refuse_other_binding({"OMP_PROC_BIND": "close"})
    pinning.refuse_other_binding({"OMP_PROC_BIND": "false", "OMP_NUM_THREADS": "2"})


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
    pin_rank("cores", 1, Place(rank=rank, local_rank=rank, world_size=2, local_world_size=2))
    go.set()
    thread.join()
    return usable_cpus(), found


@pytest.mark.skipif(
    sys.platform != "linux" or len(cores(usable_cpus())) < 2, reason="needs two cores"
)
def test_two_ranks_bind_themselves_with_all_their_threads() -> None:
    may_use = usable_cpus()
    first, second = together(2, bound, may_use)
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert len(first[0]) == len(second[0]) == 1
    assert set(first[0]) | set(second[0]) <= set(may_use)
    assert first[0] != second[0]
