"""Check requests against the limits of a cluster, and the results folder, before submission."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Final, Self, TypeVar

import psutil

from hpcncf.errors import did_you_mean
from hpcncf.job.spec import Resources
from hpcncf.slurm import query
from hpcncf.slurm.query import parse_config, parse_duration
from hpcncf.slurm.site import Site
from hpcncf.text import pluralize

SHOW: Final = ("scontrol", "--all", "--oneliner", "show")
LIST: Final = ("sacctmgr", "--noheader", "--parsable2", "show")
# States of a partition that keep a job from starting.
CLOSED: Final = {
    "DOWN": "is down: jobs wait, none starts",
    "DRAIN": "is being drained: it takes no job",
    "INACTIVE": "is inactive: it takes no job",
}
T = TypeVar("T")


@dataclass(frozen=True)
class Partition:
    """Limits of one partition; None means no limit."""

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


def parse_partitions(text: str) -> list[Partition]:
    """Parse the output of `scontrol --all --oneliner show partition`."""
    return [
        Partition(
            name=row["PartitionName"],
            default=row.get("Default") == "YES",
            state=row.get("State", "UP"),
            max_minutes=parse_minutes(row.get("MaxTime", "")),
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


def parse_nodes(text: str) -> list[Node]:
    """Parse the output of `scontrol --all --oneliner show node` into nodes."""
    return [
        Node(
            name=row["NodeName"],
            cpus=_number(row, "CPUEfctv") or _number(row, "CPUTot") or 0,
            mem_mib=_number(row, "RealMemory") or 0,
            gpus=parse_gpus(row.get("Gres", "")),
            features=_names(row.get("AvailableFeatures", "")),
            partitions=_names(row.get("Partitions", "")),
        )
        for row in _rows(text, "NodeName")
        if "FUTURE" not in row.get("State", "")
    ]


def parse_gpus(gres: str) -> int:
    """Count the GPUs of a node's Gres: `gpu:a100:4(S:0-1),gpu:v100:2` has six."""
    numbers = re.findall(r"(?:^|,)gpu(?::[^,:()]+)??(?::(\d+))?(?=[,(]|$)", gres)
    return sum(int(number or 1) for number in numbers)


def parse_qos(text: str) -> dict[str, Qos]:
    """Parse the output of `sacctmgr show qos`, with name, flags and maxwall: name -> QOS."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return {
        name.lower(): Qos(parse_minutes(wall), frozenset(flags.lower().split(",")))
        for name, flags, wall in rows
    }


def parse_minutes(time: str) -> int | None:
    """Parse a time limit, such as `1-12:00:00`, in whole minutes; None for UNLIMITED."""
    limit_s = parse_duration(time)
    return None if limit_s is None else int(limit_s // 60)


def _rows(text: str, first: str) -> Iterator[dict[str, str]]:
    """Yield each line's `key=value` pairs as a dictionary; the first value of a key counts.

    Values with spaces (an OS, a reason) may contain text that looks like a later pair.
    """
    for line in text.splitlines():
        if line.startswith(f"{first}="):
            pairs = (word.split("=", 1) for word in line.split() if "=" in word)
            yield dict(reversed([(key, value) for key, value in pairs]))


def _number(row: dict[str, str], key: str) -> int | None:
    """Return the whole number under a key; None if it is missing or UNLIMITED."""
    text = row.get(key, "")
    return int(text) if text.isdigit() else None


def _allowed(row: dict[str, str], key: str) -> frozenset[str] | None:
    text = row.get(key, "ALL")
    return None if text == "ALL" else _names(text.lower())


def _names(text: str) -> frozenset[str]:
    return frozenset() if text in ("(null)", "") else frozenset(text.split(","))


@dataclass(frozen=True)
class Capacity:
    """Resources and limits of a cluster; None if Slurm was not asked or did not answer."""

    partitions: list[Partition] | None = None
    nodes: list[Node] | None = None
    qos: dict[str, Qos] | None = None
    routed: bool = False
    """Whether a plugin of the site may choose the partition of a job that names none."""
    problems: list[str] = field(default_factory=list)
    """Reasons for missing answers."""

    def nodes_of(self, partition: Partition) -> list[Node]:
        """Return the partition's nodes, limited to the CPUs and memory that its jobs may use."""
        most_cpus, most_mib = partition.max_cpus_per_node, partition.max_mem_mib
        return [
            replace(
                node,
                cpus=node.cpus if most_cpus is None else min(node.cpus, most_cpus),
                mem_mib=node.mem_mib if most_mib is None else min(node.mem_mib, most_mib),
            )
            for node in self.nodes or []
            if partition.name in node.partitions
        ]

    @classmethod
    def query(cls, site: Site) -> Self:
        """Ask Slurm for the nodes and limits that apply to the site's jobs."""
        problems: list[str] = []

        def answer(parse: Callable[[str], T], *command: str) -> T | None:
            text = query.run_query(list(command), problems)
            return parse(text) if text else None

        if {"clusters", "M"} & set(site.additional_parameters):
            return cls(problems=["the site sends its jobs to other clusters"])
        partitions = answer(parse_partitions, *SHOW, "partition")
        if not partitions:  # no other query will be answered either
            return cls(problems=problems)
        qos, plugins = None, "(null)"
        if _requested(site, "qos"):
            qos = answer(parse_qos, *LIST, "qos", "format=name,flags,maxwall")
        if not _requested(site, "partition"):
            config = answer(parse_config, "scontrol", "show", "config") or {}
            plugins = config.get("JobSubmitPlugins", plugins)
        nodes = answer(parse_nodes, *SHOW, "node")
        return cls(partitions, nodes, qos or None, plugins != "(null)", problems)


def _requested(site: Site, name: str) -> str | None:
    """Return the partition, account, QOS or constraint that jobs request; None without one.

    sbatch's environment variables override the site.
    """
    value: str | None = os.environ.get(f"SBATCH_{name.upper()}") or getattr(site, name)
    return value


@dataclass(frozen=True)
class Limits:
    """Limits of Slurm that apply to the jobs of one site."""

    site: Site
    known: Capacity

    @classmethod
    def query(cls, site: Site) -> Self:
        """Ask Slurm for the limits of the site; `known.problems` lists unanswered questions."""
        return cls(site, Capacity.query(site))

    @classmethod
    def unknown(cls, site: Site) -> Self:
        """Return limits that refuse nothing, for sites whose limits are unknown."""
        return cls(site, Capacity())

    def notes(self) -> list[str]:
        problems = "; ".join(self.known.problems)
        return [f"not checked against the cluster's limits: {problems}"] if problems else []

    def refusal(self, resources: Resources) -> str | None:
        """Return why Slurm would refuse or never start a job with these resources, or None.

        The text says what to change.
        """
        if self.known.partitions is None:
            return None
        names = [partition.name for partition in self.known.partitions]
        choices = f"There are: {', '.join(names) or 'none'}"
        wanted = (_requested(self.site, "partition") or "").split(",")
        if missing := next((name for name in wanted if name and name not in names), None):
            return (
                f"partition {missing!r} does not exist here: set partition in the site file."
                f"{did_you_mean(missing, names)} {choices}"
            )
        selected = [
            partition
            for partition in self.known.partitions
            if partition.name in wanted
            or (wanted == [""] and (partition.default or self.known.routed))
        ]
        if not selected:
            return (
                "no partition is named, and the cluster has no default: set partition in the site "
                f"file. {choices}"
            )
        problems = [list(self._problems(resources, partition)) for partition in selected]
        if not all(problems):  # Slurm takes a partition that fits
            return None
        fitting = [
            partition.name
            for partition in self.known.partitions
            if partition not in selected and not list(self._problems(resources, partition))
        ]
        remedy = [f"or set partition: {' or '.join(fitting[:6])} in the site file"] * bool(fitting)
        return "; ".join([*problems[0], *remedy])

    def _problems(self, wants: Resources, partition: Partition) -> Iterator[str]:
        """Yield reasons why a request does not fit the partition, as far as is known."""
        name, nodes = f"partition {partition.name}", wants.nodes
        if partition.state in CLOSED:
            yield f"{name} {CLOSED[partition.state]}"
        # A QOS has a limit of its own, and may lift the partition's. One that is not known may
        # lift everything.
        qos = _requested(self.site, "qos")
        known = (self.known.qos or {}).get((qos or "").lower())
        lifted = known.flags if known else frozenset()

        def is_kept(limit: str) -> bool:
            return not qos or (known is not None and f"partition{limit}" not in lifted)

        if is_kept("timelimit"):
            yield from _time_problems(wants, name, partition.max_minutes)
        if known:
            yield from _time_problems(wants, f"QOS {qos}", known.max_minutes)
        yield from self._access_problems(partition, qos)
        most, least = partition.max_nodes, partition.min_nodes
        if most is not None and nodes > most and is_kept("maxnodes"):
            yield f"requests {nodes} nodes; {name} allows {most}: resources.nodes at most {most}"
        if nodes < least and is_kept("minnodes"):
            yield (
                f"requests {pluralize(nodes, 'node')}; {name} takes jobs of {least} or more: "
                f"resources.nodes at least {least}"
            )
        if self.known.nodes is not None:
            yield from self._node_problems(wants, name, self.known.nodes_of(partition))

    def _access_problems(self, partition: Partition, qos: str | None) -> Iterator[str]:
        name, account = f"partition {partition.name}", _requested(self.site, "account")
        ours, allowed = (account or "").lower(), partition.accounts
        if ours and (ours in partition.denied_accounts or (allowed and ours not in allowed)):
            takes = f" (it takes {', '.join(sorted(allowed))})" if allowed else ""
            yield f"{name} takes no job of account {account}{takes}"
        if qos and partition.qos and qos.lower() not in partition.qos:
            takes = ", ".join(sorted(partition.qos))
            yield f"{name} takes no job of QOS {qos} (it takes {takes})"

    def _node_problems(self, wants: Resources, name: str, nodes: list[Node]) -> Iterator[str]:
        if not nodes:
            yield f"{name} has no nodes"
            return
        constraint = _requested(self.site, "constraint") or ""
        # Slurm's GB are GiB.
        mib = 0 if self.site.memory == "none" else ceil(wants.node_mem_gb * 1024)
        most_cpus = max(node.cpus for node in nodes)
        most_mib = max(node.mem_mib for node in nodes)
        most_gpus = max(node.gpus for node in nodes)
        fewer_cores = "fewer resources.tasks_per_node or resources.cpus_per_task"
        if wants.side_by_side > 1:
            fewer_cores += f", or than {wants.side_by_side} runs side by side"
        less_memory = f"-s resources.mem_gb={most_mib / 1024 / wants.side_by_side:.4g}"
        too_large = [
            f"requests {wanted} {noun} on each node; {name} allows {most} at most: {remedy}"
            for noun, wanted, most, remedy in (
                ("cores", wants.node_cores, most_cpus, fewer_cores),
                ("MiB of memory", mib, most_mib, less_memory),
                (
                    "GPUs",
                    wants.node_gpus,
                    most_gpus,
                    f"resources.gpus_per_node at most {most_gpus}",
                ),
            )
            if wanted > most
        ]
        yield from too_large
        fitting = [
            node
            for node in nodes
            if wants.node_cores <= node.cpus
            and mib <= node.mem_mib
            and wants.node_gpus <= node.gpus
            and has_features(constraint, node.features)
        ]
        if len(fitting) < wants.nodes and not too_large:
            each = [
                pluralize(wants.node_cores, "core"),
                f"{mib} MiB" if mib else "",
                pluralize(wants.node_gpus, "GPU") if wants.node_gpus else "",
                f"the feature {constraint}" if constraint else "",
            ]
            yield (
                f"requests {pluralize(wants.nodes, 'node')}, each with "
                f"{', '.join(filter(None, each))}"
                f"; {name} has {len(fitting)} such: fewer resources.nodes, or less on each"
            )


def _time_problems(wants: Resources, limited: str, most: int | None) -> Iterator[str]:
    runs, total = wants.runs_per_task, wants.timeout_min * wants.runs_per_task
    if most is None or total <= most:
        return
    sum_of = f" (timeout_min {wants.timeout_min} x {runs} runs)" if runs > 1 else ""
    if most >= wants.timeout_min:
        remedy = f"-s resources.runs_per_task={most // wants.timeout_min}"
    else:
        single = " -s resources.runs_per_task=1" if runs > 1 else ""
        remedy = f"-s resources.timeout_min={most}{single}"
    yield f"requests {total} min{sum_of}; {limited} allows {most} min: {remedy}"


def has_features(constraint: str, features: frozenset[str]) -> bool:
    """Evaluate a constraint of the form `a&b` or `a|b`; counts and brackets are left to Slurm."""
    if not re.fullmatch(r"[\w.:=+-]+(?:(&[\w.:=+-]+)*|(\|[\w.:=+-]+)*)", constraint):
        return True
    if "|" in constraint:
        return bool(set(constraint.split("|")) & features)
    return set(constraint.split("&")) <= features


# In this machine's memory or image, so that no other machine sees them. Whether a disk (ext4, xfs)
# is exported to the nodes is not visible from here; doctor on a node tells.
OF_ONE_MACHINE: Final = ("tmpfs", "ramfs", "devtmpfs", "overlay", "squashfs", "rootfs")
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run")
DISKS: Final = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs")


def unshared_folder_warning(folder: Path) -> str | None:
    """Return a reason why compute nodes may not see the folder, or None."""
    place = folder.resolve()
    around = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if place.is_relative_to(mount.mountpoint)
    ]
    # Of two mounts on one point the later hides the other.
    nearest = max(reversed(around), key=lambda mount: len(mount.mountpoint), default=None)
    if nearest is None:
        return None
    on_disk = nearest.fstype in DISKS and any(place.is_relative_to(name) for name in TEMPORARY)
    if not on_disk and nearest.fstype not in OF_ONE_MACHINE:
        return None
    return (
        f"{folder} is on {nearest.mountpoint} ({nearest.fstype}) of this machine. If compute nodes "
        "do not see it, jobs fail without a log: test it with `srun ls`, or choose another "
        "folder with --results DIR"
    )
