"""Network, loopback and disk traffic of the nodes, and whether one of them is the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

from hpcncf.collect.resource_columns import IDLE_MIB_S
from hpcncf.collect.training_columns import in_training
from hpcncf.records.schema import NodeRecord, RankRecord
from hpcncf_analysis.formatting import format_number, format_percent

# The node's counters: other jobs on a shared node are in them, RDMA is not.
LIMIT: Final = 0.5
"""Share of a link's capacity, both directions, from which it is the limit: protocols and pauses
between messages take the rest. An all-reduce in a ring sends as much as it receives."""


@dataclass(frozen=True)
class Traffic:
    """MiB/s of the busiest node while the ranks trained; of a command, over all of its time."""

    network: float
    """Received and sent."""
    loopback: float
    disk: float
    """Read and written."""
    link: float | None = None
    """What the fastest network link carries in one direction; None if not known."""


def traffic_of(nodes: Sequence[NodeRecord], ranks: Sequence[RankRecord]) -> Traffic | None:
    """None without a series."""
    found = []
    for node in nodes:
        within = in_training(ranks, node)
        within = within if any(within) else [True] * len(node.length_s)
        length_s = sum(compress(node.length_s, within))
        if length_s > 0:
            series = (node.network_mib, node.loopback_mib, node.disk_mib)
            network, loopback, disk = (sum(compress(each, within)) / length_s for each in series)
            found.append(Traffic(network, loopback, disk, node.network_link_mib_s))
    return max(found, key=lambda each: (each.network, each.disk), default=None)


def describe_exchange(traffic: Traffic, nodes: int, sync_share: float) -> list[str]:
    """What the ranks' exchange takes of the network; `sync_share`: of the time it goes on."""
    if nodes < 2:
        if traffic.loopback < IDLE_MIB_S:
            return ["the exchange stays in the node's memory: no network is the limit"]
        over = f"{format_number(traffic.loopback)} MiB/s over loopback"
        return [f"the exchange stays on the node, {over}: no network is the limit"]
    text = f"a node received and sent {format_number(traffic.network)} MiB/s over the network"
    if traffic.link is None or sync_share <= 0:
        return [f"{text}; the speed of its link is not known"]
    used = traffic.network / sync_share / (2 * traffic.link)
    text += f", {format_percent(min(used, 1.0))} of what its link carries while the ranks exchange"
    if used >= LIMIT:
        return [f"{text}: the network is the limit"]
    return [f"{text}: latency or a slow rank is the limit, not its bandwidth"]


def describe_files(traffic: Traffic) -> list[str]:
    """Where the bytes that a run waits for come from."""
    network, disk = traffic.network, traffic.disk
    if max(network, disk) < IDLE_MIB_S:
        return []
    text = (
        f"meanwhile the node's disks read and wrote {format_number(disk)} MiB/s, its network "
        f"carried {format_number(network)} MiB/s"
    )
    if network < disk:
        return [text]
    if traffic.link is not None and network >= LIMIT * traffic.link:
        return [f"{text}: the files come over the network, which is the limit"]
    return [f"{text}: the files come over the network"]
