"""Check requests against the limits of a cluster before they are submitted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final, Self, TypeVar

from hpcncf.errors import did_you_mean
from hpcncf.job.spec import Resources
from hpcncf.slurm import cluster_info, query
from hpcncf.slurm.cluster_info import Capacity, Node, Partition
from hpcncf.slurm.site import Site

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
    """One shape of resources, and where its site sends it."""

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
            _counted(self.resources.node_cores, "core"),
            f"{self.mem_mib} MiB" if self.memory else "",
            _counted(gpus, "GPU") if gpus else "",
            f"the feature {self.constraint}" if self.constraint else "",
        ]
        return ", ".join(part for part in parts if part)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


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
            f"requests {_counted(nodes, 'node')}; {name} takes jobs of {least} or more: "
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
            f"requests {_counted(wants.nodes, 'node')}, each with {request.describe_node()}; "
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
    """What a site's jobs may request."""

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
    partitions = answer(cluster_info.partitions, *SHOW, "partition")
    if not partitions:  # no other query will be answered either
        return Capacity(problems=problems)
    nodes = answer(cluster_info.nodes, *SHOW, "node")
    request = Request.build(Resources(), site, os.environ)
    accounts = qos = reservations = None
    routed = not request.partition and answer(cluster_info.routed, "scontrol", "show", "config")
    if request.account:
        where = ("associations", "where", f"user={user}", "format=account")
        accounts = answer(cluster_info.accounts, *LIST, *where)
    if request.qos:
        qos = answer(cluster_info.qos, *LIST, "qos", "format=name,flags,maxwall")
    if request.reservation:
        reservations = answer(cluster_info.reservations, *SHOW, "reservation")
    return Capacity(
        partitions, nodes, accounts or None, qos or None, reservations, bool(routed), problems
    )
