"""What a cluster has and allows, read from the text of scontrol and sacctmgr."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpcncf.slurm.times import seconds


@dataclass(frozen=True)
class Partition:
    """A limit that is None is none."""

    name: str
    default: bool
    state: str
    """UP, DOWN (jobs wait, none starts), DRAIN and INACTIVE (jobs are refused)."""
    max_minutes: int | None
    min_nodes: int
    max_nodes: int | None
    max_cpus_per_node: int | None
    max_mem_mib: int | None
    """Per node."""
    accounts: frozenset[str] | None
    """Those allowed; None: all."""
    denied_accounts: frozenset[str]
    qos: frozenset[str] | None
    """Those allowed; None: all."""


@dataclass(frozen=True)
class Node:
    name: str
    cpus: int
    """Those that jobs may use: without the ones that a site keeps for its daemons."""
    mem_mib: int
    gpus: int
    features: frozenset[str]
    partitions: frozenset[str]


@dataclass(frozen=True)
class Qos:
    max_minutes: int | None
    flags: frozenset[str]
    """`partitiontimelimit` and the like: the limits of a partition that it lifts."""


@dataclass(frozen=True)
class Capacity:
    """What was asked of Slurm is here; None: it was not asked, or did not tell."""

    partitions: list[Partition] | None = None
    nodes: list[Node] | None = None
    accounts: frozenset[str] | None = None
    qos: dict[str, Qos] | None = None
    reservations: frozenset[str] | None = None
    routed: bool = False
    """Whether a plugin of the site may choose the partition of a job that names none."""
    problems: list[str] = field(default_factory=list)
    """Why something could not be asked."""

    def nodes_of(self, partition: Partition) -> list[Node]:
        return [node for node in self.nodes or [] if partition.name in node.partitions]


def partitions(text: str) -> list[Partition]:
    """`scontrol --all --oneliner show partition`."""
    return [_partition(row) for row in _rows(text, "PartitionName")]


def _partition(row: dict[str, str]) -> Partition:
    return Partition(
        name=row["PartitionName"],
        default=row.get("Default") == "YES",
        state=row.get("State", "UP"),
        max_minutes=minutes(row.get("MaxTime", "")),
        min_nodes=_number(row.get("MinNodes", "")) or 0,
        max_nodes=_number(row.get("MaxNodes", "")),
        max_cpus_per_node=_number(row.get("MaxCPUsPerNode", "")),
        max_mem_mib=_number(row.get("MaxMemPerNode", "")),
        accounts=_allowed(row.get("AllowAccounts", "ALL")),
        denied_accounts=_names(row.get("DenyAccounts", "").lower()),
        qos=_allowed(row.get("AllowQos", "ALL")),
    )


def nodes(text: str) -> list[Node]:
    """`scontrol --all --oneliner show node`; nodes that do not exist yet are left out."""
    return [_node(row) for row in _rows(text, "NodeName") if "FUTURE" not in row.get("State", "")]


def _node(row: dict[str, str]) -> Node:
    return Node(
        name=row["NodeName"],
        cpus=_number(row.get("CPUEfctv", "")) or _number(row.get("CPUTot", "")) or 0,
        mem_mib=_number(row.get("RealMemory", "")) or 0,
        gpus=gpus(row.get("Gres", "")),
        features=_names(row.get("AvailableFeatures", "")),
        partitions=_names(row.get("Partitions", "")),
    )


def gpus(gres: str) -> int:
    """`gpu:a100:4(S:0-1),gpu:v100:2` are six."""
    found = re.findall(r"(?:^|,)gpu(?::[^,:()]+)??(?::(\d+))?(?=[,(]|$)", gres)
    return sum(int(number or 1) for number in found)


def reservations(text: str) -> frozenset[str]:
    """`scontrol --all --oneliner show reservation`."""
    return frozenset(row["ReservationName"] for row in _rows(text, "ReservationName"))


def routed(text: str) -> bool:
    """`scontrol show config`; most of what sites load there is a script of their own."""
    found = re.search(r"^JobSubmitPlugins\s*=\s*(\S+)", text, re.MULTILINE)
    return found is not None and found[1] != "(null)"


def accounts(text: str) -> frozenset[str]:
    """`sacctmgr --noheader --parsable2 show associations user=... format=account`."""
    return frozenset(line.strip().lower() for line in text.splitlines() if line.strip())


def qos(text: str) -> dict[str, Qos]:
    """`sacctmgr --noheader --parsable2 show qos format=name,flags,maxwall`."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return {
        name.lower(): Qos(minutes(wall), frozenset(flags.lower().split(",")))
        for name, flags, wall in rows
    }


def minutes(time: str) -> int | None:
    """`1-12:00:00`, `05:00`, `UNLIMITED`: whole minutes, None without a limit."""
    found = seconds(time)
    return None if found is None else int(found // 60)


def _rows(text: str, first: str) -> Iterator[dict[str, str]]:
    """A line each. What follows a space in a value (an OS, a reason) is no pair, or comes later
    than the pair that it looks like."""
    for line in text.splitlines():
        if line.startswith(f"{first}="):
            pairs = (word.split("=", 1) for word in line.split() if "=" in word)
            yield dict(reversed([(key, value) for key, value in pairs]))


def _number(text: str) -> int | None:
    """UNLIMITED is None."""
    return int(text) if text.isdigit() else None


def _allowed(text: str) -> frozenset[str] | None:
    return None if text == "ALL" else _names(text.lower())


def _names(text: str) -> frozenset[str]:
    return frozenset() if text in ("(null)", "") else frozenset(text.split(","))
