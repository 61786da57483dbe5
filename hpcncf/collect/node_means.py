"""Average node records over their windows: network and disk traffic, and series of the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpcncf.records.schema import Gpu, NodeRecord

Series = Callable[["Gpu"], Sequence[float | None]]

TRAFFIC: Final = {
    "network_mib_s": "network",
    "loopback_mib_s": "loopback",
    "disk_mib_s": "disks",
}
IDLE_MIB_S: Final = 1.0
"""Less traffic than this belongs to the system, not to a training."""


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def mean_over_windows(series: Iterable[float | None], lengths_s: Iterable[float]) -> float | None:
    """Mean of the windows with a value, weighted by their lengths; None if there are none."""
    known = [
        (value * length_s, length_s)
        for value, length_s in zip(series, lengths_s, strict=True)
        if value is not None
    ]
    return ratio(sum(part for part, _ in known), sum(length_s for _, length_s in known))


def mean(nodes: Sequence[NodeRecord], series: Series) -> float | None:
    """Mean of a series over all GPUs and windows with a value, weighted by window length."""
    gpus = [(gpu, node.length_s) for node in nodes for gpu in node.gpus or []]
    values = chain.from_iterable(series(gpu) for gpu, _ in gpus)
    return mean_over_windows(values, chain.from_iterable(lengths_s for _, lengths_s in gpus))


def traffic(nodes: Sequence[NodeRecord]) -> dict[str, float | None]:
    """Network and disk traffic in MiB/s: each node's mean, summed; None if not recorded."""
    found: dict[str, float | None] = {}
    for column in TRAFFIC:
        series = column.removesuffix("_s")
        rates = [ratio(sum(getattr(node, series)), sum(node.length_s)) for node in nodes]
        known = [rate for rate in rates if rate is not None]
        found[column] = sum(known) if known else None
    return found
