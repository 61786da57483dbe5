"""Divide a node's cores among its ranks.

A share lies within what the rank may use already: it is narrowed, never widened. All ranks of a
node compute all shares from the same masks, so they need not agree any further.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Literal

from hpcncf.errors import HpcncfError
from hpcncf.monitor.cgroup import cpu_list
from hpcncf.monitor.node import Core
from hpcncf.text import pluralize

How = Literal["cores", "numa"]

BINDING: Final = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def shares(
    how: How, masks: Sequence[Sequence[int]], each: int, found: Sequence[Core]
) -> list[list[int]]:
    """CPUs of each rank by local rank, one CPU per core as far as possible.

    `masks`: what each rank may use; `found`: the cores of all these CPUs. With `numa` a rank's
    cores are of one NUMA node, and the ranks spread over the nodes. Raises HpcncfError where there
    are too few.
    """
    may_use = [
        frozenset(at for at, core in enumerate(found) if set(core.cpus) & set(mask))
        for mask in masks
    ]
    if how == "numa":
        may_use = _on_one_node(may_use, each, found)
    owners = _given_out(may_use, each)
    if owners is None:
        raise HpcncfError(_too_few(how, masks, each, found))
    return [
        sorted(min(set(found[core].cpus) & set(mask)) for core in owners if owners[core] == rank)
        for rank, mask in enumerate(masks)
    ]


def in_order(how: How, ranks: int, each: int, found: Sequence[Core]) -> list[int]:
    """The CPUs of a run that has all these cores to choose from, rank after rank; all of them
    where they do not suffice, which its ranks will say."""
    cpus = [cpu for core in found for cpu in core.cpus]
    try:
        given_out = shares(how, [cpus] * ranks, each, found)
    except HpcncfError:
        return sorted(cpus)
    return [cpu for share in given_out for cpu in share]


def _on_one_node(
    may_use: Sequence[AbstractSet[int]], each: int, found: Sequence[Core]
) -> list[frozenset[int]]:
    """Of each rank's cores those of the node that has the most left; none where no node has
    enough."""
    left: list[frozenset[int]] = []
    taken: dict[int, int] = {}
    for mine in may_use:
        of_node: dict[int, set[int]] = {}
        for core in sorted(mine):
            of_node.setdefault(found[core].node, set()).add(core)
        free = {node: len(its) - taken.get(node, 0) for node, its in of_node.items()}
        large = [node for node, its in of_node.items() if len(its) >= each]
        best = max(large, key=lambda node: free[node], default=None)
        if best is None:
            left.append(frozenset())
            continue
        taken[best] = taken.get(best, 0) + each
        left.append(frozenset(of_node[best]))
    return left


def _given_out(may_use: Sequence[AbstractSet[int]], each: int) -> dict[int, int] | None:
    """Core -> rank, so that each has as many as it needs; None where that cannot be.

    Kuhn's augmenting paths: a rank takes a free core, else one whose owner can take another.
    """
    owners: dict[int, int] = {}

    def takes(rank: int, seen: set[int]) -> bool:
        mine = sorted(may_use[rank])
        for core in mine:
            if core not in owners:
                owners[core] = rank
                return True
        for core in mine:
            if core not in seen and owners[core] != rank:
                seen.add(core)
                if takes(owners[core], seen):
                    owners[core] = rank
                    return True
        return False

    enough = all(takes(rank, set()) for rank in range(len(may_use)) for _ in range(each))
    return owners if enough else None


def _too_few(how: How, masks: Sequence[Sequence[int]], each: int, found: Sequence[Core]) -> str:
    cpus = sorted({cpu for mask in masks for cpu in mask})
    threads = max((len(core.cpus) for core in found), default=1)
    hardware = f", of {threads} hardware threads each" if threads > 1 else ""
    nodes = len({core.node for core in found})
    which = f" on {pluralize(nodes, 'NUMA node')}" if how == "numa" else ""
    return (
        f"training.pin {how}: {pluralize(len(masks), 'rank')} of this node with {each} "
        f"core{'s' * (each != 1)} each, none shared, but the CPUs {cpu_list(cpus)} that they may "
        f"use are {pluralize(len(found), 'core')}{hardware}{which}: ask for fewer "
        "cpus_per_task or ranks, for whole cores (--hint=nomultithread), or use pin none"
    )


def refuse_other_binding(env: Mapping[str, str] = os.environ) -> None:
    """OpenMP's own binding is read when torch is loaded: it would hold threads where they were.

    Raises HpcncfError.
    """
    for name in BINDING:
        if env.get(name, "false").lower() not in ("false", "none", "disabled", ""):
            raise HpcncfError(f"training.pin: {name}={env[name]} binds threads as well: unset it")


def bind(cpus: Sequence[int]) -> None:
    """Every thread that this process has by now, and all that these will start."""
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:  # it has ended meanwhile
            continue
