"""Count processes that a launcher such as `srun` started for a command, not as its children.

`srun` in a batch script asks Slurm's daemons on the job's nodes to start its tasks. Those of Python
are known by what the probe inside them wrote.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hpcncf.launcher.environment import hosts, per_node
from hpcncf.probe.read import ProcessUse

STEP = "SLURM_STEP_ID"


def add_launched(
    measured: Mapping[str, Any],
    processes: Sequence[ProcessUse],
    env: Mapping[str, str],
    here: str | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Add processes that a launcher started to a command's figures; also return each node's use.

    `env`: the command's environment; `here`: its node, by default this one. Without any such
    process the figures stay as they are.
    """
    here = here or os.uname().nodename
    away: dict[str, list[ProcessUse]] = defaultdict(list)
    for each in processes:
        if (each.node, each.place.get(STEP)) != (here, env.get(STEP)):
            away[each.node].append(each)
    figures = {
        name: dict(part) if isinstance(part, dict) else part for name, part in measured.items()
    }
    if not away:
        return figures, []
    cores = cores_by_node(env)
    used = [_use(node, found, cores.get(_short(node))) for node, found in sorted(away.items())]
    _add(figures, [each for found in away.values() for each in found], cores, used, here)
    return figures, used


def cores_by_node(env: Mapping[str, str]) -> dict[str, float]:
    """Return the cores that Slurm gave the job: node -> cores; empty if it does not say."""
    nodes = hosts(env.get("SLURM_JOB_NODELIST", ""))
    counts = per_node(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    if len(nodes) != len(counts):
        return {}
    return {_short(node): float(count) for node, count in zip(nodes, counts, strict=True)}


def _short(node: str) -> str:
    return node.partition(".")[0]


def _use(node: str, found: Sequence[ProcessUse], cores: float | None) -> dict[str, Any]:
    return {
        "node": node,
        "allocated": cores,
        "processes": len(found),
        "cpu_s": sum(each.user_s + each.system_s for each in found),
        "memory_peak_mib": sum(each.memory_peak_mib for each in found),
    }


def _add(
    figures: dict[str, Any],
    found: Sequence[ProcessUse],
    by_node: Mapping[str, float],
    used: Sequence[Mapping[str, Any]],
    here: str,
) -> None:
    cores, cpu, memory = figures["cores"], figures["cpu"], figures["memory"]
    cpu["user_s"] += sum(each.user_s for each in found)
    cpu["system_s"] += sum(each.system_s for each in found)
    spent_s, elapsed_s = cpu["user_s"] + cpu["system_s"], figures["elapsed_s"]
    other_nodes = sum(count for node, count in by_node.items() if node != _short(here))
    cores["allocated"] += other_nodes
    cores["usable"] += other_nodes  # what affinity allows there is not known
    if elapsed_s > 0:
        cores["used"] = spent_s / elapsed_s
        cpu["efficiency"] = spent_s / (elapsed_s * cores["allocated"])
    if cpu["efficiency_peak"] is not None:  # of the command's own children only
        cpu["efficiency_peak"] = max(cpu["efficiency_peak"], cpu["efficiency"] or 0.0)
    if cpu["main_s"] is not None:
        cpu["children_s"] = max(0.0, spent_s - cpu["main_s"])
    cpu["processes_peak"] = max(cpu["processes_peak"], len(found))
    for each in used:
        own = memory["rss_peak_mib"] if _short(each["node"]) == _short(here) else 0.0
        memory["rss_peak_mib"] = max(memory["rss_peak_mib"], own + each["memory_peak_mib"])
