"""Nodes, partitions and limits of a cluster; file systems of this node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hpcncf.slurm.query import seconds


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


# In this machine's memory or image: no other machine sees them. Whether a disk (ext4, xfs) is
# exported to the nodes cannot be seen from here; --check-node does.
OF_ONE_MACHINE: Final = ("tmpfs", "ramfs", "devtmpfs", "overlay", "squashfs", "rootfs")
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run")
SHARED: Final = re.compile(
    r"nfs4?|lustre|gpfs|beegfs.*|ceph|wekafs|panfs|orangefs|pvfs2|glusterfs|afs|cifs|smb3|9p|"
    r"virtiofs|daos|fuse(\..*)?|autofs"
)


def doubt(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Why compute nodes may not see the folder; None where nothing speaks against it."""
    try:
        kind, at = file_system(folder.resolve(), mounts.read_text(errors="replace"))
    except OSError:
        return None
    if SHARED.fullmatch(kind):
        return None
    temporary = any(folder.resolve().is_relative_to(name) for name in TEMPORARY)
    if not temporary and kind not in OF_ONE_MACHINE:
        return None
    return (
        f"{folder} lies on {at} ({kind}) of this machine: if compute nodes do not see it, jobs "
        "fail and leave no log; --check-node finds out, --results DIR chooses another folder"
    )


def file_system(folder: Path, mountinfo: str) -> tuple[str, str]:
    """The type of the file system that holds the folder, and where that is mounted.

    `36 35 98:0 /root /mount/point rw - ext3 /dev/root rw`: proc(5). Spaces are `\\040` there, and
    of two on one point the later hides the other.
    """
    found = ("unknown", "/")
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        words, kinds = before.split(" "), after.split(" ")
        if separator and len(words) > 4:
            at = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[4])
            if folder.is_relative_to(at) and len(at) >= len(found[1]):
                found = (kinds[0], at)
    return found
