"""Divide a node's cores among its ranks.

A share lies within what the rank may use already: it is narrowed, never widened. All ranks of a
node compute all shares from the same masks, so they need not agree any further.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.monitor.cgroup import cpu_list
from hpcncf.monitor.topology import Core
from hpcncf.text import pluralize

BINDING: Final = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def shares(masks: Sequence[Sequence[int]], each: int, found: Sequence[Core]) -> list[list[int]]:
    """Assign CPUs to each rank: one list per local rank, one CPU per core.

    `masks`: what each rank may use; `found`: the cores of all these CPUs. Raises HpcncfError where
    there are too few.
    """
    may_use = [
        frozenset(at for at, core in enumerate(found) if set(core.cpus) & set(mask))
        for mask in masks
    ]
    owners = _given_out(may_use, each)
    if owners is None:
        raise HpcncfError(_too_few(masks, each, found))
    return [
        sorted(min(set(found[core].cpus) & set(mask)) for core in owners if owners[core] == rank)
        for rank, mask in enumerate(masks)
    ]


def in_order(ranks: int, each: int, found: Sequence[Core]) -> list[int]:
    """List the CPUs that the ranks of a run would get, rank after rank.

    If the cores do not suffice for all ranks, the list has all CPUs, and the ranks report the
    problem themselves.
    """
    cpus = [cpu for core in found for cpu in core.cpus]
    try:
        given_out = shares([cpus] * ranks, each, found)
    except HpcncfError:
        return sorted(cpus)
    return [cpu for share in given_out for cpu in share]


def _given_out(may_use: Sequence[AbstractSet[int]], each: int) -> dict[int, int] | None:
    """Assign `each` cores to every rank: core index -> rank; None if that is impossible.

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


def _too_few(masks: Sequence[Sequence[int]], each: int, found: Sequence[Core]) -> str:
    cpus = sorted({cpu for mask in masks for cpu in mask})
    threads = max((len(core.cpus) for core in found), default=1)
    hardware = f", of {threads} hardware threads each" if threads > 1 else ""
    return (
        f"training.pin cores: {pluralize(len(masks), 'rank')} of this node with {each} "
        f"core{'s' * (each != 1)} each, none shared, but the CPUs {cpu_list(cpus)} that they may "
        f"use are {pluralize(len(found), 'core')}{hardware}: ask for fewer "
        "cpus_per_task or ranks, for whole cores (--hint=nomultithread), or use pin none"
    )


def refuse_other_binding(env: Mapping[str, str] = os.environ) -> None:
    """Refuse to pin if an OpenMP variable such as OMP_PROC_BIND binds threads as well.

    OpenMP reads its variables when torch is loaded, and would hold threads where they were.

    Raises HpcncfError.
    """
    for name in BINDING:
        if env.get(name, "false").lower() not in ("false", "none", "disabled", ""):
            raise HpcncfError(f"training.pin: {name}={env[name]} binds threads as well: unset it")


def bind(cpus: Sequence[int]) -> None:
    """Bind all threads of this process, and the threads they will start, to these CPUs."""
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:  # it has ended meanwhile
            continue
