"""Which core, and which NUMA node's memory, a CPU belongs to, as sysfs tells.

`root` is where sys is looked for; only tests give another than `/`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcncf.monitor.cores import ROOT, contents, parse_cpu_list

CPU: Final = "sys/devices/system/cpu/cpu{}/topology/{}"
NODES: Final = "sys/devices/system/node"


@dataclass(frozen=True)
class Core:
    cpus: tuple[int, ...]
    """Its hardware threads, of those that were asked about."""
    node: int
    """Its NUMA node; 0 where the kernel tells of none."""


def cores(cpus: Iterable[int], root: Path = ROOT) -> list[Core]:
    """The cores of these CPUs, neighbours side by side: by NUMA node, socket and number.

    A CPU whose siblings the kernel does not tell is a core of its own.
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
    """CPU -> NUMA node; empty where the kernel tells of none."""
    return {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (root / NODES).glob("node[0-9]*")
        for cpu in parse_cpu_list(contents(folder / "cpulist"))
    }


def nodes(cpus: Iterable[int], root: Path = ROOT) -> list[int] | None:
    """The NUMA nodes of these CPUs; None where the kernel tells of none."""
    known = nodes_of(root)
    return sorted({known[cpu] for cpu in cpus if cpu in known}) or None
