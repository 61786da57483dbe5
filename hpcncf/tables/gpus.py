"""What a run's GPUs did, by the nodes' series: hours, shares, memory and energy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

from hpcncf.plan import Run
from hpcncf.records import Gpu, NodeRecord
from hpcncf.tables.trained import Row
from hpcncf.tables.watched import ratio

GPUS: Final = (
    "gpus",
    "gpu_hours",
    "gpu_busy",
    "gpu_ours",
    "gpu_memory_peak_mib",
    "gpu_sm_mhz",
    "gpu_power_w",
    "gpu_energy_j",
    "gpu_j_per_epoch",
    "gpu_throttled",
    "gpu_throttled_by",
    "gpu_model",
)

Series = Callable[[Gpu], Sequence[float | None]]


def columns_gpus(
    run: Run,
    nodes: Sequence[NodeRecord],
    elapsed_s: float,
    seconds_per_epoch: float | None,
    training: tuple[float, float],
) -> Row:
    """All of GPUS, None where there was no GPU or NVML did not tell.

    `training`: its begin and end in seconds since 1970, for the energy of an epoch.
    """
    row: Row = dict.fromkeys(GPUS)
    seen = [gpu for node in nodes for gpu in node.gpus or []]
    count = len(seen) if run.by_hand else run.resources.gpus_per_node * run.resources.nodes
    if count == 0:
        return row
    share = count / run.resources.runs_per_gpu
    row |= {"gpus": count, "gpu_hours": share * elapsed_s / 3600}
    if not seen:
        return row
    energy_j = _energy_j(seen)
    watched_s = sum(sum(node.length_s) * len(node.gpus or []) for node in nodes)
    throttled = {reason: mean(nodes, _held_down_by(reason)) for reason in seen[0].throttled}
    known = {reason: share for reason, share in throttled.items() if share is not None}
    most = max(known, key=lambda reason: known[reason], default=None)
    return row | {
        "gpu_busy": mean(nodes, lambda gpu: gpu.busy),
        "gpu_ours": mean(nodes, lambda gpu: gpu.ours),
        "gpu_memory_peak_mib": max(
            (mib for gpu in seen for mib in gpu.memory_mib if mib is not None), default=None
        ),
        "gpu_sm_mhz": mean(nodes, lambda gpu: gpu.sm_mhz),
        "gpu_power_w": None if energy_j is None else ratio(energy_j, watched_s),
        "gpu_energy_j": energy_j,
        "gpu_j_per_epoch": _j_per_epoch(
            nodes, seconds_per_epoch, training, run.resources.runs_per_gpu
        ),
        "gpu_throttled": known[most] if most else None,
        "gpu_throttled_by": most if most and known[most] else None,
        "gpu_model": ", ".join(dict.fromkeys(gpu.name for gpu in seen)),
    }


def _held_down_by(reason: str) -> Series:
    return lambda gpu: gpu.throttled[reason]


def mean(nodes: Sequence[NodeRecord], series: Series) -> float | None:
    """Over all GPUs and the time that is known, weighted by the windows' lengths."""
    known = [
        (value * length, length)
        for node in nodes
        for gpu in node.gpus or []
        for value, length in zip(series(gpu), node.length_s, strict=True)
        if value is not None
    ]
    return ratio(sum(part for part, _ in known), sum(length for _, length in known))


def _energy_j(gpus: Sequence[Gpu]) -> float | None:
    told = [joules for gpu in gpus for joules in gpu.energy_j]
    known = [joules for joules in told if joules is not None]
    return sum(known) if known and len(known) == len(told) else None


def _j_per_epoch(
    nodes: Sequence[NodeRecord],
    seconds_per_epoch: float | None,
    training: tuple[float, float],
    runs_per_gpu: int,
) -> float | None:
    """Mean power of all GPUs over the windows within the training, times an epoch's seconds; of
    runs that share them, each its even part."""
    if seconds_per_epoch is None:
        return None
    powers = [power for node in nodes for power in _powers_w(node, *training)]
    if not powers or any(power is None for power in powers):
        return None
    return sum(power for power in powers if power is not None) * seconds_per_epoch / runs_per_gpu


def _powers_w(node: NodeRecord, began: float, ended: float) -> Iterator[float | None]:
    """Mean power of each of the node's GPUs between two moments."""
    from_s = datetime.fromisoformat(node.started_at).timestamp()
    inside = [
        at
        for at, (start, length) in enumerate(zip(node.start_s, node.length_s, strict=True))
        if began <= from_s + start and from_s + start + length <= ended
    ]
    length_s = sum(node.length_s[at] for at in inside)
    for gpu in node.gpus or []:
        joules = [gpu.energy_j[at] for at in inside]
        known = [each for each in joules if each is not None]
        yield ratio(sum(known), length_s) if len(known) == len(joules) else None
