"""Check requests against the limits of a cluster, and the results folder, before submission."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Final, Self, TypeVar

from hpcncf.errors import did_you_mean, plural
from hpcncf.job.spec import Resources
from hpcncf.slurm import query
from hpcncf.slurm.query import seconds
from hpcncf.slurm.site import Site


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
    """Resources and limits of a cluster; None if Slurm was not asked or did not answer."""

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


def parse_partitions(text: str) -> list[Partition]:
    """`scontrol --all --oneliner show partition`."""
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
    """`scontrol --all --oneliner show node`, without nodes that do not exist yet."""
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
    """`gpu:a100:4(S:0-1),gpu:v100:2` are six."""
    numbers = re.findall(r"(?:^|,)gpu(?::[^,:()]+)??(?::(\d+))?(?=[,(]|$)", gres)
    return sum(int(number or 1) for number in numbers)


def parse_reservations(text: str) -> frozenset[str]:
    """`scontrol --all --oneliner show reservation`."""
    return frozenset(row["ReservationName"] for row in _rows(text, "ReservationName"))


def parse_routed(text: str) -> bool:
    """Whether `scontrol show config` names a submit plugin, usually a script of the site."""
    plugins = re.search(r"^JobSubmitPlugins\s*=\s*(\S+)", text, re.MULTILINE)
    return plugins is not None and plugins[1] != "(null)"


def parse_accounts(text: str) -> frozenset[str]:
    """`sacctmgr --noheader --parsable2 show associations user=... format=account`."""
    return frozenset(line.strip().lower() for line in text.splitlines() if line.strip())


def parse_qos(text: str) -> dict[str, Qos]:
    """`sacctmgr --noheader --parsable2 show qos format=name,flags,maxwall`."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return {
        name.lower(): Qos(parse_minutes(wall), frozenset(flags.lower().split(",")))
        for name, flags, wall in rows
    }


def parse_minutes(time: str) -> int | None:
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


def unshared_folder_warning(
    folder: Path, mounts: Path = Path("/proc/self/mountinfo")
) -> str | None:
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


# States of a partition that keep a job from starting.
CLOSED: Final = {
    "DOWN": "is down: jobs wait, none starts",
    "DRAIN": "is being drained: it takes no job",
    "INACTIVE": "is inactive: it takes no job",
}
SHOW: Final = ("scontrol", "--all", "--oneliner", "show")
LIST: Final = ("sacctmgr", "--noheader", "--parsable2", "show")
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """Resources of a job, and the partition, account and QOS of its site."""

    resources: Resources
    partition: str | None
    """One, several with commas between, or None: the cluster's default."""
    account: str | None
    qos: str | None
    constraint: str | None
    reservation: str | None
    memory: bool
    """Whether memory is requested at all."""

    @classmethod
    def build(cls, resources: Resources, site: Site, environment: Mapping[str, str]) -> Self:
        """The request as sbatch sends it: its variables override the script's lines."""
        names = {
            name: environment.get(f"SBATCH_{name.upper()}") or getattr(site, name)
            for name in ("partition", "account", "qos", "constraint", "reservation")
        }
        return cls(resources, **names, memory=site.memory != "none")

    @property
    def minutes(self) -> int:
        return self.resources.timeout_min * self.resources.runs_per_task

    @property
    def mem_mib(self) -> int:
        """Slurm's GB are GiB."""
        return ceil(self.resources.node_mem_gb * 1024) if self.memory else 0

    def describe_node(self) -> str:
        """`4 cores, 8192 MiB, 1 GPU`: the request for each node."""
        gpus = self.resources.node_gpus
        parts = [
            plural(self.resources.node_cores, "core"),
            f"{self.mem_mib} MiB" if self.memory else "",
            plural(gpus, "GPU") if gpus else "",
            f"the feature {self.constraint}" if self.constraint else "",
        ]
        return ", ".join(part for part in parts if part)


def refusal(request: Request, known: Capacity) -> str | None:
    """Why Slurm would refuse the request or never start it, and what to change; else None."""
    reasons = [*_unknown_names(request, known), *_partition_reasons(request, known)]
    return "; ".join(reasons) or None


def _unknown_names(request: Request, known: Capacity) -> Iterator[str]:
    for key, name, choices in (
        ("account", request.account, known.accounts),
        ("qos", request.qos, known.qos),
        ("reservation", request.reservation, known.reservations),
    ):
        # Slurm ignores case, and takes one of several names.
        if name is None or choices is None:
            continue
        if not set(name.lower().split(",")) & {choice.lower() for choice in choices}:
            names = sorted(choices)
            yield (
                f"{key} {name!r} is not one that you may use here: set {key} in the site file."
                f"{did_you_mean(name, names)} There are: {', '.join(names[:20]) or 'none'}"
            )


def _partition_reasons(request: Request, known: Capacity) -> list[str]:
    if known.partitions is None:
        return []
    selected = _select_partitions(request, known.partitions, known.routed)
    if isinstance(selected, str):
        return [selected]
    problems = [list(_problems(request, partition, known)) for partition in selected]
    if not all(problems):  # Slurm takes a partition that fits
        return []
    others = [partition for partition in known.partitions if partition not in selected]
    fitting = [
        partition.name for partition in others if not list(_problems(request, partition, known))
    ]
    remedy = [f"or set partition: {' or '.join(fitting[:6])} in the site file"] * bool(fitting)
    return ["; ".join([*problems[0], *remedy])]


def _select_partitions(
    request: Request, partitions: list[Partition], routed: bool
) -> list[Partition] | str:
    """The partitions that the job is sent to, or why there are none."""
    names = [partition.name for partition in partitions]
    choices = f"There are: {', '.join(names) or 'none'}"
    if request.partition is None:
        if routed:
            return partitions
        return [partition for partition in partitions if partition.default] or (
            "no partition is named, and the cluster has no default: set partition in the site "
            f"file. {choices}"
        )
    wanted = request.partition.split(",")
    missing = next((name for name in wanted if name not in names), None)
    if missing is not None:
        return (
            f"partition {missing!r} does not exist here: set partition in the site file."
            f"{did_you_mean(missing, names)} {choices}"
        )
    return [partition for partition in partitions if partition.name in wanted]


def _problems(request: Request, partition: Partition, known: Capacity) -> Iterator[str]:
    """Why the request does not fit the partition; nothing if it fits as far as is known."""
    name, nodes = f"partition {partition.name}", request.resources.nodes
    if partition.state in CLOSED:
        yield f"{name} {CLOSED[partition.state]}"
    # A QOS has a limit of its own, and may lift the partition's.
    qos = (known.qos or {}).get((request.qos or "").lower())
    limits = [] if _lifts(request, known, "timelimit") else [(name, partition.max_minutes)]
    limits += [(f"QOS {request.qos}", qos.max_minutes)] if qos else []
    for limited, most in limits:
        if most is not None and request.minutes > most:
            yield _time_problem(request.resources, limited, most)
    yield from _access_problems(request, partition)
    most, least = partition.max_nodes, partition.min_nodes
    if most is not None and nodes > most and not _lifts(request, known, "maxnodes"):
        yield f"requests {nodes} nodes; {name} allows {most}: resources.nodes at most {most}"
    if nodes < least and not _lifts(request, known, "minnodes"):
        yield (
            f"requests {plural(nodes, 'node')}; {name} takes jobs of {least} or more: "
            f"resources.nodes at least {least}"
        )
    if known.nodes is not None:
        yield from _node_problems(request, partition, known.nodes_of(partition))


def _lifts(request: Request, known: Capacity, limit: str) -> bool:
    """Whether the QOS lifts the partition's limit. A QOS that is not known may lift everything."""
    if request.qos is None:
        return False
    qos = (known.qos or {}).get(request.qos.lower())
    return qos is None or f"partition{limit}" in qos.flags


def _time_problem(wants: Resources, limited: str, most: int) -> str:
    runs, total = wants.runs_per_task, wants.timeout_min * wants.runs_per_task
    sum_of = f" (timeout_min {wants.timeout_min} x {runs} runs)" if runs > 1 else ""
    if most >= wants.timeout_min:
        remedy = f"-s resources.runs_per_task={most // wants.timeout_min}"
    else:
        single = " -s resources.runs_per_task=1" if runs > 1 else ""
        remedy = f"-s resources.timeout_min={most}{single}"
    return f"requests {total} min{sum_of}; {limited} allows {most} min: {remedy}"


def _access_problems(request: Request, partition: Partition) -> Iterator[str]:
    account, qos = (request.account or "").lower(), (request.qos or "").lower()
    allowed = partition.accounts
    if account and (account in partition.denied_accounts or (allowed and account not in allowed)):
        takes = f" (it takes {', '.join(sorted(allowed))})" if allowed else ""
        yield f"partition {partition.name} takes no job of account {request.account}{takes}"
    if qos and partition.qos and qos not in partition.qos:
        takes = ", ".join(sorted(partition.qos))
        yield f"partition {partition.name} takes no job of QOS {request.qos} (it takes {takes})"


def _node_problems(request: Request, partition: Partition, nodes: list[Node]) -> Iterator[str]:
    name, wants = f"partition {partition.name}", request.resources
    if not nodes:
        yield f"{name} has no nodes"
        return

    def cpus(node: Node) -> int:
        limit = partition.max_cpus_per_node
        return node.cpus if limit is None else min(node.cpus, limit)

    def memory(node: Node) -> int:
        limit = partition.max_mem_mib
        return node.mem_mib if limit is None else min(node.mem_mib, limit)

    most_memory, most_gpus = max(map(memory, nodes)), max(node.gpus for node in nodes)
    fewer_cores = "fewer resources.tasks_per_node or resources.cpus_per_task"
    if wants.side_by_side > 1:
        fewer_cores += f", or than {wants.side_by_side} runs side by side"
    less_memory = f"-s resources.mem_gb={most_memory / 1024 / wants.side_by_side:.4g}"
    too_large = [
        f"requests {wanted} {noun} on each node; {name} allows {most} at most: {remedy}"
        for noun, wanted, most, remedy in (
            ("cores", wants.node_cores, max(map(cpus, nodes)), fewer_cores),
            ("MiB of memory", request.mem_mib, most_memory, less_memory),
            ("GPUs", wants.node_gpus, most_gpus, f"resources.gpus_per_node at most {most_gpus}"),
        )
        if wanted > most
    ]
    yield from too_large
    fitting = [
        node
        for node in nodes
        if wants.node_cores <= cpus(node)
        and request.mem_mib <= memory(node)
        and wants.node_gpus <= node.gpus
        and has_features(request.constraint or "", node.features)
    ]
    if len(fitting) < wants.nodes and not too_large:
        yield (
            f"requests {plural(wants.nodes, 'node')}, each with {request.describe_node()}; "
            f"{name} has {len(fitting)} such: fewer resources.nodes, or less on each"
        )


def has_features(constraint: str, features: frozenset[str]) -> bool:
    """Evaluates `a&b` or `a|b`; anything else (counts, brackets) is left to Slurm."""
    if not re.fullmatch(r"[\w.:=+-]+(?:(&[\w.:=+-]+)*|(\|[\w.:=+-]+)*)", constraint):
        return True
    if "|" in constraint:
        return bool(set(constraint.split("|")) & features)
    return set(constraint.split("&")) <= features


@dataclass(frozen=True)
class Limits:
    """Limits of a site's jobs."""

    site: Site
    known: Capacity

    @classmethod
    def query(cls, site: Site, user: str) -> Self:
        """Ask Slurm. Unanswered questions are listed in `known.problems`."""
        return cls(site, _query(site, user))

    @classmethod
    def unknown(cls) -> Self:
        """Limits that refuse nothing."""
        return cls(Site(), Capacity())

    def refusal(self, resources: Resources) -> str | None:
        """Why Slurm would refuse the resources or never start them; None if no reason is known."""
        return refusal(Request.build(resources, self.site, os.environ), self.known)

    def notes(self) -> list[str]:
        problems = "; ".join(self.known.problems)
        return [f"not checked against the cluster's limits: {problems}"] if problems else []


def _query(site: Site, user: str) -> Capacity:
    problems: list[str] = []

    def answer(parse: Callable[[str], T], *command: str) -> T | None:
        text = query.run_query(list(command), problems)
        return parse(text) if text else None

    if {"clusters", "M"} & set(site.additional_parameters):
        return Capacity(problems=["the site sends its jobs to other clusters"])
    partitions = answer(parse_partitions, *SHOW, "partition")
    if not partitions:  # no other query will be answered either
        return Capacity(problems=problems)
    nodes = answer(parse_nodes, *SHOW, "node")
    request = Request.build(Resources(), site, os.environ)
    accounts = qos = reservations = None
    routed = not request.partition and answer(parse_routed, "scontrol", "show", "config")
    if request.account:
        where = ("associations", "where", f"user={user}", "format=account")
        accounts = answer(parse_accounts, *LIST, *where)
    if request.qos:
        qos = answer(parse_qos, *LIST, "qos", "format=name,flags,maxwall")
    if request.reservation:
        reservations = answer(parse_reservations, *SHOW, "reservation")
    return Capacity(
        partitions, nodes, accounts or None, qos or None, reservations, bool(routed), problems
    )
