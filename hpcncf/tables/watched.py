"""What the nodes' series tell of a run: its training alone, and who else was there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import compress
from operator import add, mul
from typing import Final

from hpcncf.monitor import growth
from hpcncf.records import NodeRecord, RankRecord

# The series must hold this share of the ranks' CPU time, or it saw only some of the ranks.
COVERED: Final = 0.9


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def efficiency_in_training(
    ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]
) -> float | None:
    """CPU efficiency over the windows between the slowest rank's first step and its last.

    Start-up (imports, joining the group, loading) is left out; evaluation is not. None where no
    whole window lies there, or where the nodes' series missed some of the ranks.
    """
    if not nodes or not _cover(ranks, nodes):
        return None
    cpu_s = length_s = 0.0
    for node in nodes:
        within = in_training(ranks, node)
        allocated = sum(r.cores.allocated for r in ranks if r.node_index == node.node_index)
        cpu_s += sum(compress(node.tree_cpu_s, within))
        length_s += sum(compress(node.length_s, within)) * allocated
    return ratio(cpu_s, length_s)


def in_training(ranks: Sequence[RankRecord], node: NodeRecord) -> list[bool]:
    """Of each window of the node's series, whether it lies whole between the slowest rank's first
    step and its last."""
    began, ended = training_time(ranks)
    offset = datetime.fromisoformat(node.started_at).timestamp()
    return [
        began <= offset + start and offset + start + length <= ended
        for start, length in zip(node.start_s, node.length_s, strict=False)
    ]


def _cover(ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> bool:
    seen = sum(sum(node.tree_cpu_s) for node in nodes)
    return seen >= COVERED * sum(record.cpu.user_s + record.cpu.system_s for record in ranks)


def training_time(ranks: Sequence[RankRecord]) -> tuple[float, float]:
    """First step to last, all ranks at it, in seconds since 1970; empty without training."""
    began, ended = 0.0, 0.0
    for record in ranks:
        if record.training is None:
            return 0.0, 0.0
        told = record.training
        first = datetime.fromisoformat(record.started_at).timestamp() + told.startup_s
        spent = told.training_s + told.evaluation_s + told.checkpoint_s
        began, ended = max(began, first), max(ended, first + spent)
    return began, ended


def memory_growth(nodes: Sequence[NodeRecord]) -> float | None:
    """MiB by which the anonymous memory of the run's processes grew steadily, on the node where it
    was most; None where on none it did."""
    found = [
        growth.steady(list(map(add, node.start_s, node.length_s)), node.anonymous_mib)
        for node in nodes
        if node.anonymous_mib
    ]
    return max((each.mib for each in found if each), default=None)


def others_cores(nodes: Sequence[NodeRecord]) -> float | None:
    """Cores' worth of the run's CPUs that other processes used, mean over time, all nodes."""
    means = [
        ratio(sum(map(mul, node.others_cores, node.length_s)), sum(node.length_s)) for node in nodes
    ]
    known = [mean for mean in means if mean is not None]
    return sum(known) if known else None
