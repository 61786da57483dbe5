"""One run's account: what the records of its ranks add up to. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from hpcncf.plan import Run
from hpcncf.records import NodeRecord, RankRecord
from hpcncf.state.evidence import whole
from hpcncf.tables import gpus, packed, steady, told, trained, waits, watched
from hpcncf.tables.gpus import GPUS
from hpcncf.tables.packed import PACKED
from hpcncf.tables.trained import TRAINED, Row
from hpcncf.tables.waits import WAITS

MEASURED: Final = (
    "elapsed_s",
    "cores_allocated",
    "cores_usable",
    "cores_used",
    "cpu_s",
    "cpu_efficiency",
    "cpu_efficiency_peak",
    "peak_window_s",
    "cpu_efficiency_training",
    "others_cores",
    "core_hours",
    "core_hours_wasted",
    "memory_peak_mib",
    "memory_efficiency",
    "memory_growth_mib",
    "time_efficiency",
    *WAITS,
    *GPUS,
    *PACKED,
    "node",
    "cpu_model",
    "commit",
    "python",
    "torch",
)


def settle(
    run: Run,
    ranks: Sequence[RankRecord],
    epoch_instances: int | None,
    nodes: Sequence[NodeRecord] = (),
) -> Row:
    """The run's figures; all None unless every one of its ranks left a record.

    `epoch_instances` is a full epoch's, positives and negatives, where the data is known.
    """
    if not whole(ranks):
        nothing: Row = dict.fromkeys((*MEASURED, *TRAINED))
        nothing |= {"cores_allocated": None if run.by_hand else run.resources.cores}
        return nothing | told.columns(run, ranks)
    measured = _measured(run, ranks) | {
        "cpu_efficiency_training": watched.efficiency_in_training(ranks, nodes),
        "others_cores": watched.others_cores(nodes),
        "memory_growth_mib": watched.memory_growth(nodes),
    }
    figures = trained.figures_trained(run, ranks, measured["cores_allocated"], epoch_instances)
    spans = (measured["elapsed_s"], figures["seconds_per_epoch"], watched.training_time(ranks))
    on_gpus = gpus.columns_gpus(run, nodes, *spans)
    return measured | on_gpus | packed.columns_packed(ranks) | figures | told.columns(run, ranks)


def _measured(run: Run, ranks: Sequence[RankRecord]) -> Row:
    elapsed_s = elapsed(ranks)
    allocated = sum(record.cores.allocated for record in ranks)
    cpu_s = sum(record.cpu.user_s + record.cpu.system_s for record in ranks)
    memory_mib = memory_peak(ranks)
    asked = None if run.by_hand else run.resources  # nobody asked Slurm for a plain command
    return {
        "elapsed_s": elapsed_s,
        "cores_allocated": allocated,
        "cores_usable": usable(ranks),
        "cores_used": watched.ratio(cpu_s, elapsed_s),
        "cpu_s": cpu_s,
        "cpu_efficiency": watched.ratio(cpu_s, elapsed_s * allocated),
        "cpu_efficiency_peak": peak(ranks),
        "peak_window_s": max(record.cpu.peak_window_s for record in ranks),
        "core_hours": allocated * elapsed_s / 3600,
        "core_hours_wasted": max(allocated * elapsed_s - cpu_s, 0.0) / 3600,
        "memory_peak_mib": memory_mib,
        "memory_efficiency": memory_mib / (asked.mem_gb * 1024) if asked else None,
        "time_efficiency": elapsed_s / (asked.timeout_min * 60) if asked else None,
        **waits.columns_waits(ranks),
        "node": distinct(record.node for record in ranks),
        **{
            name: distinct(record.environment.get(name) for record in ranks)
            for name in ("cpu_model", "commit", "python", "torch")
        },
    }


def elapsed(ranks: Sequence[RankRecord]) -> float:
    """Seconds from the first rank's start to the last one's end."""
    started = min(datetime.fromisoformat(record.started_at) for record in ranks)
    ended = max(datetime.fromisoformat(record.ended_at) for record in ranks)
    return (ended - started).total_seconds()


def usable(ranks: Sequence[RankRecord]) -> float:
    """Cores that affinity and quota allow: each node's union of CPUs, no more than its quota.

    The ranks of a node share its job's cgroup, so the largest quota seen is the node's.
    """
    nodes: dict[int, list[RankRecord]] = defaultdict(list)
    for record in ranks:
        nodes[record.node_index].append(record)
    return sum(_usable_on_node(records) for records in nodes.values())


def _usable_on_node(ranks: Sequence[RankRecord]) -> float:
    cpus = {cpu for record in ranks for cpu in record.cores.cpus}
    quotas = [record.cores.quota for record in ranks if record.cores.quota is not None]
    return min(len(cpus), max(quotas)) if len(quotas) == len(ranks) else float(len(cpus))


def peak(ranks: Sequence[RankRecord]) -> float | None:
    """The ranks' peaks weighted by their cores: an upper bound, they need not coincide."""
    weighted = [
        record.cpu.efficiency_peak * record.cores.allocated
        for record in ranks
        if record.cpu.efficiency_peak is not None
    ]
    if len(weighted) < len(ranks):
        return None
    return watched.ratio(sum(weighted), sum(record.cores.allocated for record in ranks))


def memory_peak(ranks: Sequence[RankRecord]) -> float:
    """MiB on the node with the most: the sum of its ranks' peaks, an upper bound too."""
    nodes: dict[int, float] = defaultdict(float)
    for record in ranks:
        nodes[record.node_index] += record.memory.rss_peak_mib
    return max(nodes.values())


def warnings(ranks: Sequence[RankRecord], figures: Row) -> list[str]:
    """What makes the run's figures worth less: the ranks' own warnings, and what they show."""
    said = [warning for record in ranks for warning in record.warnings]
    if whole(ranks):
        said += [text for holds, text in _findings(ranks, figures) if holds]
        said += steady.unsteady(figures)
    return list(dict.fromkeys(said))


def _findings(ranks: Sequence[RankRecord], figures: Row) -> list[tuple[bool, str]]:
    allocated, may_use = figures["cores_allocated"], figures["cores_usable"]
    efficiency = figures["cpu_efficiency"]
    digests = {part.model_sha256 for record in ranks if (part := record.training)}
    return [
        (
            may_use < allocated,
            f"only {may_use:g} of {allocated:g} allocated cores were usable: "
            "affinity or the cgroup held the run back",
        ),
        (
            efficiency is not None and efficiency > 1,
            f"CPU efficiency {efficiency or 0:.0%} is above 100 %: more cores were used "
            "than allocated",
        ),
        (len(digests) > 1, "the ranks ended with different parameters"),
    ]


def distinct(values: Iterable[Any]) -> str | None:
    """Each value once, in order; None where there is none."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value)) or None
