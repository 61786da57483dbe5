"""Cores and NUMA nodes as sysfs shows them, and how ranks and runs divide them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.errors import HpcncfError
from hpcncf.launcher import pinning
from hpcncf.monitor import topology
from hpcncf.monitor.cgroup import cpu_list
from hpcncf.monitor.topology import Core

Shape = dict[int, tuple[int, int, int]]
"""CPU -> its NUMA node, its socket, its core."""

# As two sockets of four cores with two hardware threads each are usually numbered.
TWO_SOCKETS: Shape = {cpu: (cpu // 4 % 2, cpu // 4 % 2, cpu % 8) for cpu in range(16)}
# As many virtual machines are: siblings side by side, one socket, one node.
SIBLINGS_IN_A_ROW: Shape = {cpu: (0, 0, cpu // 2) for cpu in range(8)}
# One socket of two NUMA nodes, CPUs dealt to them in turn, no hyperthreads.
DEALT: Shape = {cpu: (cpu % 2, 0, cpu) for cpu in range(8)}


def machine(root: Path, shape: Shape) -> Path:
    def alike(place: Callable[[int], object], cpu: int) -> str:
        return cpu_list([other for other in shape if place(other) == place(cpu)])

    for cpu, (numa_node, socket, _) in shape.items():
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        siblings = alike(lambda each: shape[each][2], cpu)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
        (topology / "physical_package_id").write_text(f"{socket}\n")
        memory = root / f"sys/devices/system/node/node{numa_node}"
        memory.mkdir(parents=True, exist_ok=True)
        (memory / "cpulist").write_text(f"{alike(lambda each: shape[each][0], cpu)}\n")
    return root


def found(root: Path, shape: Shape, *cpus: int) -> list[tuple[int, tuple[int, ...]]]:
    cores = topology.cores(cpus or shape, machine(root, shape))
    return [(core.node, core.cpus) for core in cores]


@pytest.mark.parametrize(
    ("shape", "cpus", "expected"),
    [
        (
            TWO_SOCKETS,
            (),
            [(0, (at, at + 8)) for at in range(4)] + [(1, (at, at + 8)) for at in range(4, 8)],
        ),
        (TWO_SOCKETS, (12, 1, 9, 2), [(0, (1, 9)), (0, (2,)), (1, (12,))]),  # what was asked about
        (SIBLINGS_IN_A_ROW, (), [(0, (at, at + 1)) for at in range(0, 8, 2)]),
        (DEALT, (), [(0, (at,)) for at in range(0, 8, 2)] + [(1, (at,)) for at in range(1, 8, 2)]),
        ({}, (3, 1), [(0, (1,)), (0, (3,))]),  # the kernel reports nothing
    ],
)
def test_hardware_threads_are_one_core_and_neighbours_stand_side_by_side(
    tmp_path: Path,
    shape: Shape,
    cpus: tuple[int, ...],
    expected: list[tuple[int, tuple[int, ...]]],
) -> None:
    assert found(tmp_path, shape, *cpus) == expected


def test_the_numa_nodes_of_cpus_are_known_if_the_kernel_reports_them(tmp_path: Path) -> None:
    root = machine(tmp_path, TWO_SOCKETS)
    assert [topology.nodes(cpus, root) for cpus in ([1, 9], [1, 4])] == [[0], [0, 1]]
    assert topology.nodes([1, 3], tmp_path / "no sysfs") is None


@pytest.mark.parametrize(
    ("number", "chosen"),
    [(8, [0, 4, 1, 5, 2, 6, 3, 7]), (4, [0, 1, 2, 3]), (6, [0, 4, 1, 5, 2, 3]), (2, [0, 1])],
)
def test_so_many_cpus_on_as_many_cores_as_there_are(
    tmp_path: Path, number: int, chosen: list[int]
) -> None:
    shape = {cpu: (0, 0, cpu % 4) for cpu in range(8)}
    assert topology.spread(range(8), number, machine(tmp_path, shape)) == chosen


ALL = list(range(16))


def shares(root: Path, shape: Shape, each: int, masks: Sequence[Sequence[int]]) -> list[list[int]]:
    cores = topology.cores({cpu for mask in masks for cpu in mask}, machine(root, shape))
    return pinning.shares(masks, each, cores)


@pytest.mark.parametrize(
    ("each", "masks", "expected"),
    [
        (2, [ALL, ALL], [[0, 1], [2, 3]]),  # nobody bound them
        (3, [ALL, ALL], [[0, 1, 2], [3, 4, 5]]),  # the second on both sockets
        (1, [[0, 8], [1, 9]], [[0], [1]]),  # as srun binds to cores
        (1, [[0, 1], [0]], [[1], [0]]),  # the first has another, the second has not
    ],
)
def test_each_rank_has_cores_of_its_own_within_what_it_may_use(
    tmp_path: Path, each: int, masks: list[list[int]], expected: list[list[int]]
) -> None:
    assert shares(tmp_path, TWO_SOCKETS, each, masks) == expected


@pytest.mark.parametrize(
    ("shape", "each", "masks", "why"),
    [
        (TWO_SOCKETS, 2, [[0, 8]], "are 1 core, of 2 hardware threads each"),
        (TWO_SOCKETS, 1, [[0], [8]], "2 ranks of this node with 1 core each"),
        (TWO_SOCKETS, 5, [ALL, ALL], "0-15 that they may use are 8 cores"),
        (SIBLINGS_IN_A_ROW, 1, [[0], [1]], "whole cores"),
    ],
)
def test_too_few_cores_are_refused_with_what_there_is(
    tmp_path: Path, shape: Shape, each: int, masks: list[list[int]], why: str
) -> None:
    with pytest.raises(HpcncfError, match=why):
        shares(tmp_path, shape, each, masks)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (SIBLINGS_IN_A_ROW, [0, 2, 4, 6]),  # its first four CPUs are two cores
    ],
)
def test_a_run_alone_on_a_machine_is_given_the_cores_that_its_ranks_will_choose(
    tmp_path: Path, shape: Shape, expected: list[int]
) -> None:
    cores = topology.cores(shape, machine(tmp_path, shape))
    assert pinning.in_order(2, 2, cores) == expected
    assert pinning.in_order(9, 2, cores) == sorted(shape)


MASKS = st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=4)


@given(MASKS, st.integers(1, 3))
def test_no_share_widens_what_a_rank_may_use_or_touches_anothers_core(
    masks: list[set[int]], each: int
) -> None:
    """Six cores of two hardware threads, on two nodes."""
    known = set().union(*masks)
    cores = [Core(tuple({at, at + 6} & known), at // 3) for at in range(6)]
    found = [core for core in cores if core.cpus]
    try:
        given_out = pinning.shares([sorted(mask) for mask in masks], each, found)
    except HpcncfError:
        return
    for mask, share in zip(masks, given_out, strict=True):
        assert len(share) == each
        assert set(share) <= mask
    taken = [cpu % 6 for share in given_out for cpu in share]
    assert len(taken) == len(set(taken))


def test_openmps_own_binding_is_refused() -> None:
    with pytest.raises(HpcncfError, match="OMP_PROC_BIND=close binds threads as well: unset it"):
        pinning.refuse_other_binding({"OMP_PROC_BIND": "close"})
    pinning.refuse_other_binding({"OMP_PROC_BIND": "false", "OMP_NUM_THREADS": "2"})
