"""Records of a command that runs still, or that nobody but the probe observed.

`hpcncf run` writes a rank's record at the end. Before, its progress, the node's series and the
files of the probe say how far it is. A batch script that only had the probe's two variables leaves
nothing but these files.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcncf.errors import UsageError
from hpcncf.launcher.environment import slurm_job_id
from hpcncf.launcher.launched import add_launched, cores_by_node
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.probe.read import ProcessUse, read_processes, read_profiles
from hpcncf.records.plan_file import read_plan
from hpcncf.records.schema import Claim, NodeRecord, Progress, RankRecord, read_optional

Records = tuple[list[RankRecord], list[NodeRecord]]


def records_so_far(attempt: AttemptPaths, claim: Claim) -> Records:
    """Build the records of a command that runs, as of some seconds ago; empty before it began."""
    progress = read_optional(attempt.progress, Progress)
    if progress is None or not progress.cores_allocated:
        return [], []
    spent_s, elapsed_s = progress.cpu_s or 0.0, progress.elapsed_s
    folder = attempt.probe(0)
    figures = _figures(
        elapsed_s=elapsed_s,
        allocated=progress.cores_allocated,
        usable=progress.cores_usable or progress.cores_allocated,
        user_s=spent_s,
        memory_mib=progress.rss_mib or 0.0,
    )
    # Its environment is not known here, but that of its processes is, which have its job's.
    processes = read_processes(folder)
    env = dict(next((each.place for each in processes), {}))
    env.pop("SLURM_STEP_ID", None)
    if progress.slurm_step is not None:
        env["SLURM_STEP_ID"] = progress.slurm_step
    figures, launched = add_launched(figures, processes, env, claim.node)
    profiles, problems = read_profiles(folder)
    rank = _rank(
        figures,
        run_id=progress.run_id,
        attempt=progress.attempt,
        node=claim.node,
        slurm_job_id=claim.slurm_job_id,
        pid=progress.pid or claim.pid,
        began_s=datetime.fromisoformat(progress.updated_at).timestamp() - elapsed_s,
        run=_planned(attempt, progress.run_id),
        by_launcher=launched,
        program=profiles,
        warnings=problems,
    )
    node = read_optional(attempt.node(0), NodeRecord) or _empty_node(rank, 0)
    return [rank], [node]


def _planned(attempt: AttemptPaths, run_id: str) -> dict[str, Any]:
    try:
        plan = read_plan(ResultPaths(attempt.folder.parents[2]))
        return plan.run(run_id).model_dump(mode="json")
    except UsageError:
        return {"workload": {"command": [run_id]}}


def records_of_probe(folder: Path) -> Records:
    """Build records from the probe's files alone, one for each node; empty if there are none."""
    processes = read_processes(folder)
    if not processes:
        return [], []
    profiles, problems = read_profiles(folder)
    by_node: dict[str, list[ProcessUse]] = defaultdict(list)
    for each in processes:
        by_node[each.node].append(each)
    began_s = min(each.started_at for each in processes)
    elapsed_s = max(each.started_at + each.elapsed_s for each in processes) - began_s
    ranks = [
        _rank_of_node(folder, found, began_s, elapsed_s, index, len(by_node))
        for index, (_, found) in enumerate(sorted(by_node.items()))
    ]
    ranks[0] = ranks[0].model_copy(update={"program": profiles, "warnings": problems})
    return ranks, [_empty_node(rank, index) for index, rank in enumerate(ranks)]


def _rank_of_node(
    folder: Path,
    found: Sequence[ProcessUse],
    began_s: float,
    elapsed_s: float,
    index: int,
    nodes: int,
) -> RankRecord:
    first, place = found[0], found[0].place
    # Each task of a step may be bound to cores of its own; processes of one task share them.
    cpus: dict[str, int] = {}
    for each in found:
        task = each.place.get("SLURM_PROCID", "")
        cpus[task] = max(each.cpus, cpus.get(task, 0))
    reachable = max(max(cpus.values()), sum(cpus.values()) if len(cpus) > 1 else 0)
    known = cores_by_node(place).get(first.node.partition(".")[0])
    allocated = known or _number(place.get("SLURM_CPUS_ON_NODE")) or float(reachable)
    figures = _figures(
        elapsed_s=elapsed_s,
        allocated=allocated,
        usable=min(allocated, float(reachable)),
        user_s=sum(each.user_s for each in found),
        system_s=sum(each.system_s for each in found),
        memory_mib=sum(each.memory_peak_mib for each in found),
        processes=len(found),
    )
    programs = list(dict.fromkeys(each.program for each in found))
    return _rank(
        figures,
        run_id=folder.name,
        attempt=1,
        node=first.node,
        node_index=index,
        rank=index,
        world_size=nodes,
        slurm_job_id=slurm_job_id(place),
        pid=1,
        began_s=began_s,
        run={"workload": {"command": programs}},
    )


def _number(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() and int(text) > 0 else None


def _figures(
    *,
    elapsed_s: float,
    allocated: float,
    usable: float,
    user_s: float,
    memory_mib: float,
    system_s: float = 0.0,
    processes: int = 1,
) -> dict[str, Any]:
    """Build what a monitor measures, as far as it is known; plain data."""
    used_s = user_s + system_s
    return {
        "elapsed_s": elapsed_s,
        "cores": {
            "allocated": allocated,
            "usable": usable,
            "used": used_s / elapsed_s if elapsed_s > 0 else None,
            "cpus": [],
            "affinity_changed": False,
            "quota": None,
            "threads_per_core": None,
            "on_node": int(max(allocated, usable)),
        },
        "cpu": {
            "user_s": user_s,
            "system_s": system_s,
            "efficiency": used_s / (elapsed_s * allocated) if elapsed_s > 0 else None,
            "efficiency_peak": None,
            "peak_window_s": 0.0,
            "context_switches_voluntary": 0,
            "context_switches_involuntary": 0,
            "threads_peak": processes,
            "processes_peak": processes,
            "main_s": None,
        },
        "memory": {"rss_peak_mib": memory_mib, "anonymous_peak_mib": None, "limit_mib": None},
        "io": {"read_mib": None, "write_mib": None},
    }


def _rank(figures: Mapping[str, Any], *, began_s: float, **about: Any) -> RankRecord:
    def moment(seconds: float) -> str:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")

    defaults: dict[str, Any] = {
        "rank": 0,
        "local_rank": 0,
        "world_size": 1,
        "node_index": 0,
        "launched_by": "run",
        "outcome": "completed",
        "exit_code": None,
        "error": None,
        "environment": {},
        "training": None,
        "warnings": [],
        "started_at": moment(began_s),
        "ended_at": moment(began_s + figures["elapsed_s"]),
    }
    return RankRecord(**{**defaults, **figures, **about})


def _empty_node(rank: RankRecord, index: int) -> NodeRecord:
    series = ("start_s", "length_s", "busy", "ours", "steal", "others_cores", "tree_cpu_s")
    more = ("rss_mib", "memory_used_mib", "network_mib", "loopback_mib", "disk_mib", "cpus")
    return NodeRecord(
        run_id=rank.run_id,
        attempt=rank.attempt,
        node=rank.node,
        node_index=index,
        started_at=rank.started_at,
        **{name: [] for name in (*series, *more)},
    )


def is_of_probe(folder: Path) -> bool:
    """Return whether a folder holds nothing but what the probe writes."""
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]  # noqa: PTH208
    except OSError:
        return False
    return (
        bool(names)
        and all(name.endswith((".json", ".part")) for name in names)
        and bool(read_processes(folder))
    )
