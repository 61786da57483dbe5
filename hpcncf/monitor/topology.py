"""Cores, their hardware threads and NUMA nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcncf.monitor.cgroup import ROOT, contents, parse_cpu_list

# `root` is where sys is looked for; only tests give another than `/`.

CPU: Final = "sys/devices/system/cpu/cpu{}/topology/{}"


NODES: Final = "sys/devices/system/node"


@dataclass(frozen=True)
class Core:
    cpus: tuple[int, ...]
    """Its hardware threads, of those that were asked about."""
    node: int
    """Its NUMA node; 0 if the kernel reports none."""


def cores(cpus: Iterable[int], root: Path = ROOT) -> list[Core]:
    """Group CPUs into cores, sorted by NUMA node, socket and number.

    A CPU whose siblings the kernel does not report is a core of its own.
    """
    together: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    nodes = nodes_of(root)
    for cpu in sorted(set(cpus)):
        siblings = parse_cpu_list(contents(root / CPU.format(cpu, "thread_siblings_list")))
        socket = contents(root / CPU.format(cpu, "physical_package_id"))
        number = int(socket) if socket.isdecimal() else 0
        together[nodes.get(cpu, 0), number, min(siblings, default=cpu)].append(cpu)
    return [Core(tuple(each), node) for (node, _, _), each in sorted(together.items())]


def nodes_of(root: Path = ROOT) -> dict[int, int]:
    """Return the NUMA node of each CPU: CPU -> node; empty if the kernel reports none."""
    return {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (root / NODES).glob("node[0-9]*")
        for cpu in parse_cpu_list(contents(folder / "cpulist"))
    }


def nodes(cpus: Iterable[int], root: Path = ROOT) -> list[int] | None:
    """Return the NUMA nodes of these CPUs; None if the kernel reports none."""
    known = nodes_of(root)
    return sorted({known[cpu] for cpu in cpus if cpu in known}) or None


def spread(cpus: Sequence[int], number: int, root: Path = ROOT) -> list[int]:
    """Choose `number` CPUs on as many cores as possible, or all CPUs if there are no more.

    CPUs of one core are adjacent, and so are cores of one NUMA node: slices of the result share a
    core only if they must. A CPU whose siblings the kernel does not report is a core of its own.
    """
    found = [core.cpus for core in cores(cpus, root)]
    turns = {cpu: turn for core in found for turn, cpu in enumerate(core)}
    chosen = set(sorted(turns, key=lambda cpu: (turns[cpu], cpu))[:number])
    return [cpu for core in found for cpu in core if cpu in chosen]
