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
    """A limit of None is no limit."""

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
    """Allowed accounts; None: all."""
    denied_accounts: frozenset[str]
    qos: frozenset[str] | None
    """Allowed QOS; None: all."""


@dataclass(frozen=True)
class Node:
    name: str
    cpus: int
    """CPUs that jobs may use, without those that a site keeps for its daemons."""
    mem_mib: int
    gpus: int
    features: frozenset[str]
    partitions: frozenset[str]


@dataclass(frozen=True)
class Qos:
    max_minutes: int | None
    flags: frozenset[str]
    """Limits of a partition that it lifts, as `partitiontimelimit`."""


@dataclass(frozen=True)
class Capacity:
    """What a cluster has; None where Slurm was not asked or did not answer."""

    partitions: list[Partition] | None = None
    nodes: list[Node] | None = None
    accounts: frozenset[str] | None = None
    qos: dict[str, Qos] | None = None
    reservations: frozenset[str] | None = None
    routed: bool = False
    """Whether a plugin of the site may choose the partition of a job that names none."""
    problems: list[str] = field(default_factory=list)
    """Reasons for missing answers."""

    def nodes_of(self, partition: Partition) -> list[Node]:
        return [node for node in self.nodes or [] if partition.name in node.partitions]


def partitions(text: str) -> list[Partition]:
    """`scontrol --all --oneliner show partition`."""
    return [
        Partition(
            name=row["PartitionName"],
            default=row.get("Default") == "YES",
            state=row.get("State", "UP"),
            max_minutes=minutes(row.get("MaxTime", "")),
            min_nodes=_number(row, "MinNodes") or 0,
            max_nodes=_number(row, "MaxNodes"),
            max_cpus_per_node=_number(row, "MaxCPUsPerNode"),
            max_mem_mib=_number(row, "MaxMemPerNode"),
            accounts=_allowed(row, "AllowAccounts"),
            denied_accounts=_names(row.get("DenyAccounts", "").lower()),
            qos=_allowed(row, "AllowQos"),
        )
        for row in _rows(text, "PartitionName")
    ]


def nodes(text: str) -> list[Node]:
    """`scontrol --all --oneliner show node`, without nodes that do not exist yet."""
    return [
        Node(
            name=row["NodeName"],
            cpus=_number(row, "CPUEfctv") or _number(row, "CPUTot") or 0,
            mem_mib=_number(row, "RealMemory") or 0,
            gpus=gpus(row.get("Gres", "")),
            features=_names(row.get("AvailableFeatures", "")),
            partitions=_names(row.get("Partitions", "")),
        )
        for row in _rows(text, "NodeName")
        if "FUTURE" not in row.get("State", "")
    ]


def gpus(gres: str) -> int:
    """`gpu:a100:4(S:0-1),gpu:v100:2` are six."""
    numbers = re.findall(r"(?:^|,)gpu(?::[^,:()]+)??(?::(\d+))?(?=[,(]|$)", gres)
    return sum(int(number or 1) for number in numbers)


def reservations(text: str) -> frozenset[str]:
    """`scontrol --all --oneliner show reservation`."""
    return frozenset(row["ReservationName"] for row in _rows(text, "ReservationName"))


def routed(text: str) -> bool:
    """Whether `scontrol show config` names a submit plugin, usually a script of the site."""
    plugins = re.search(r"^JobSubmitPlugins\s*=\s*(\S+)", text, re.MULTILINE)
    return plugins is not None and plugins[1] != "(null)"


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
    limit_s = seconds(time)
    return None if limit_s is None else int(limit_s // 60)


def _rows(text: str, first: str) -> Iterator[dict[str, str]]:
    """The pairs of each line. The first of a key counts: values with spaces (an OS, a reason) may
    contain text that looks like a later pair."""
    for line in text.splitlines():
        if line.startswith(f"{first}="):
            pairs = (word.split("=", 1) for word in line.split() if "=" in word)
            yield dict(reversed([(key, value) for key, value in pairs]))


def _number(row: dict[str, str], key: str) -> int | None:
    """UNLIMITED is None."""
    text = row.get(key, "")
    return int(text) if text.isdigit() else None


def _allowed(row: dict[str, str], key: str) -> frozenset[str] | None:
    text = row.get(key, "ALL")
    return None if text == "ALL" else _names(text.lower())


def _names(text: str) -> frozenset[str]:
    return frozenset() if text in ("(null)", "") else frozenset(text.split(","))


# In this machine's memory or image, so that no other machine sees them. Whether a disk (ext4, xfs)
# is exported to the nodes is not visible from here; --check-node tests it.
OF_ONE_MACHINE: Final = ("tmpfs", "ramfs", "devtmpfs", "overlay", "squashfs", "rootfs")
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run")
SHARED: Final = re.compile(
    r"nfs4?|lustre|gpfs|beegfs.*|ceph|wekafs|panfs|orangefs|pvfs2|glusterfs|afs|cifs|smb3|9p|"
    r"virtiofs|daos|fuse(\..*)?|autofs"
)


def doubt(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Why compute nodes may not see the folder; None if there is no sign of that."""
    try:
        kind, mount = file_system(folder.resolve(), mounts.read_text(errors="replace"))
    except OSError:
        return None
    temporary = any(folder.resolve().is_relative_to(name) for name in TEMPORARY)
    if SHARED.fullmatch(kind) or not (temporary or kind in OF_ONE_MACHINE):
        return None
    return (
        f"{folder} is on {mount} ({kind}) of this machine. If compute nodes do not see it, jobs "
        "fail without a log: test it with --check-node, or choose another folder with --results DIR"
    )


def file_system(folder: Path, mountinfo: str) -> tuple[str, str]:
    """Type and mount point of the file system that contains the folder.

    `36 35 98:0 /root /mount/point rw - ext3 /dev/root rw`: proc(5). Spaces are `\\040` there, and
    of two mounts on one point the later hides the other.
    """
    nearest = ("unknown", "/")
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        words = before.split(" ")
        if separator and len(words) > 4:
            mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[4])
            if folder.is_relative_to(mount) and len(mount) >= len(nearest[1]):
                nearest = (after.split(" ")[0], mount)
    return nearest
