"""Cores and NUMA nodes as sysfs shows them, of machines of several shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from hpcncf.monitor import node
from hpcncf.monitor.cgroup import cpu_list

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


def seen(cores: Iterable[node.Core]) -> list[tuple[int, tuple[int, ...]]]:
    return [(core.node, core.cpus) for core in cores]


def test_hyperthreads_are_one_core_and_neighbours_stand_side_by_side(tmp_path: Path) -> None:
    found = node.cores(range(16), machine(tmp_path, TWO_SOCKETS))
    assert seen(found[:5]) == [(0, (0, 8)), (0, (1, 9)), (0, (2, 10)), (0, (3, 11)), (1, (4, 12))]
    assert [core.node for core in found] == [0] * 4 + [1] * 4


def test_only_what_is_asked_about_is_reported(tmp_path: Path) -> None:
    root = machine(tmp_path, TWO_SOCKETS)
    assert seen(node.cores([12, 1, 9, 2], root)) == [(0, (1, 9)), (0, (2,)), (1, (12,))]
    assert node.nodes([1, 9], root) == [0]
    assert node.nodes([1, 4], root) == [0, 1]


@pytest.mark.parametrize(
    ("shape", "cores", "first"),
    [(SIBLINGS_IN_A_ROW, 4, [(0, (0, 1)), (0, (2, 3))]), (DEALT, 8, [(0, (0,)), (0, (2,))])],
)
def test_numbers_say_nothing(
    tmp_path: Path, shape: Shape, cores: int, first: list[tuple[int, tuple[int, ...]]]
) -> None:
    found = node.cores(shape, machine(tmp_path, shape))
    assert len(found) == cores
    assert seen(found[:2]) == first


def test_where_the_kernel_says_nothing_each_cpu_is_a_core(tmp_path: Path) -> None:
    assert seen(node.cores([3, 1], tmp_path)) == [(0, (1,)), (0, (3,))]
    assert node.nodes([1, 3], tmp_path) is None
