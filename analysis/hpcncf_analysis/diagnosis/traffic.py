"""Network, loopback and disk traffic of the nodes, and whether one of them is the limit."""

from __future__ import annotations

from typing import Final

from hpcncf.collect.resource_columns import IDLE_MIB_S
from hpcncf_analysis.diagnosis.evidence import Traffic
from hpcncf_analysis.formatting import format_number, format_percent

# The node's counters: other jobs on a shared node are in them, RDMA is not.
LIMIT: Final = 0.5
"""Share of a link's capacity, both directions, from which it is the limit: protocols and pauses
between messages take the rest. An all-reduce in a ring sends as much as it receives."""


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
