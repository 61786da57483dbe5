"""Check requests against the limits of a cluster before they are submitted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final, Self, TypeVar

from hpcncf.errors import did_you_mean
from hpcncf.job.spec import Resources
from hpcncf.slurm import cluster_info, query
from hpcncf.slurm.cluster_info import Capacity, Node, Partition
from hpcncf.slurm.site import Site

# What a partition's state means for a job that is sent to it.
CLOSED: Final = {
    "DOWN": "is down: jobs wait, none starts",
    "DRAIN": "is being drained: it takes no job",
    "INACTIVE": "is inactive: it takes no job",
}


@dataclass(frozen=True)
class Asked:
    """One shape of resources, and where its site sends it."""

    resources: Resources
    partition: str | None
    """One, several with commas between, or None: the cluster's default."""
    account: str | None
    qos: str | None
    constraint: str | None
    reservation: str | None
    memory: bool
    """Whether memory is asked for at all."""

    @property
    def minutes(self) -> int:
        return self.resources.timeout_min * self.resources.runs_per_task

    @property
    def cpus_per_node(self) -> int:
        return self.resources.node_cores

    @property
    def mem_mib(self) -> int:
        """Slurm's GB are GiB."""
        return ceil(self.resources.node_mem_gb * 1024) if self.memory else 0


def against(asked: Asked, partition: Partition, known: Capacity) -> Iterator[str]:
    """Nothing where it fits, as far as is known."""
    name, wants = f"partition {partition.name}", asked.resources
    if partition.state in CLOSED:
        yield f"{name} {CLOSED[partition.state]}"
    yield from _time(asked, partition, known)
    yield from _who(asked, partition)
    most = partition.max_nodes
    if most is not None and wants.nodes > most and not _lifted(asked, known, "maxnodes"):
        yield f"asks for {wants.nodes} nodes; {name} allows {most}: resources.nodes at most {most}"
    least = partition.min_nodes
    if wants.nodes < least and not _lifted(asked, known, "minnodes"):
        yield (
            f"asks for {_counted(wants.nodes, 'node')}; {name} takes jobs of {least} or more: "
            f"resources.nodes at least {least}"
        )
    if known.nodes is not None:
        yield from _nodes(asked, partition, known.nodes_of(partition))


def _time(asked: Asked, partition: Partition, known: Capacity) -> Iterator[str]:
    """A QOS has a limit of its own, and may lift the partition's."""
    qos = (known.qos or {}).get((asked.qos or "").lower())
    limits = [(f"QOS {asked.qos}", qos.max_minutes)] if qos else []
    if not _lifted(asked, known, "timelimit"):
        limits.insert(0, (f"partition {partition.name}", partition.max_minutes))
    for name, most in limits:
        if most is not None and asked.minutes > most:
            yield f"asks for {_spent(asked)}; {name} allows {most} min: {_shorter(asked, most)}"


def _spent(asked: Asked) -> str:
    wants = asked.resources
    if wants.runs_per_task == 1:
        return f"{asked.minutes} min"
    return f"{asked.minutes} min (timeout_min {wants.timeout_min} x {wants.runs_per_task} runs)"


def _shorter(asked: Asked, most: int) -> str:
    fitting = most // asked.resources.timeout_min
    if fitting:
        return f"-s resources.runs_per_task={fitting}"
    runs = " -s resources.runs_per_task=1" * (asked.resources.runs_per_task > 1)
    return f"-s resources.timeout_min={most}{runs}"


def _lifted(asked: Asked, known: Capacity, limit: str) -> bool:
    """A named QOS that could not be asked about may lift everything."""
    if asked.qos is None:
        return False
    qos = (known.qos or {}).get(asked.qos.lower())
    return qos is None or f"partition{limit}" in qos.flags


def _who(asked: Asked, partition: Partition) -> Iterator[str]:
    account, qos = (asked.account or "").lower(), (asked.qos or "").lower()
    allowed = partition.accounts
    if account and (account in partition.denied_accounts or (allowed and account not in allowed)):
        told = f" (it takes {', '.join(sorted(allowed))})" if allowed else ""
        yield f"partition {partition.name} takes no job of account {asked.account}{told}"
    if qos and partition.qos and qos not in partition.qos:
        takes = ", ".join(sorted(partition.qos))
        yield f"partition {partition.name} takes no job of QOS {asked.qos} (it takes {takes})"


def _nodes(asked: Asked, partition: Partition, nodes: list[Node]) -> Iterator[str]:
    name, wants = f"partition {partition.name}", asked.resources
    if not nodes:
        yield f"{name} has no nodes"
        return
    needs = _needs(asked, partition, nodes)
    for what, wanted, most, instead in needs:
        if wanted > most:
            yield f"asks for {wanted} {what} on each node; {name} allows {most} at most: {instead}"
    fit = [node for node in nodes if _fits(asked, partition, node)]
    if len(fit) < wants.nodes and all(wanted <= most for _, wanted, most, _ in needs):
        yield (
            f"asks for {_counted(wants.nodes, 'node')}, each with {_each(asked)}; "
            f"{name} has {len(fit)} such: fewer resources.nodes, or less on each"
        )


def _needs(
    asked: Asked, partition: Partition, nodes: list[Node]
) -> list[tuple[str, int, int, str]]:
    """What, how much, the most that one node gives, the settings that ask for it."""
    wants = asked.resources
    cpus = max(_cpus(partition, node) for node in nodes)
    memory = max(_memory(partition, node) for node in nodes)
    cores = "fewer resources.tasks_per_node or resources.cpus_per_task"
    mem = f"-s resources.mem_gb={memory / 1024 / wants.side_by_side:.4g}"
    gpus = max(node.gpus for node in nodes)
    if wants.side_by_side > 1:
        cores += f", or than {wants.side_by_side} runs side by side"
    return [
        ("cores", asked.cpus_per_node, cpus, cores),
        ("MiB of memory", asked.mem_mib, memory, mem),
        ("GPUs", wants.node_gpus, gpus, f"resources.gpus_per_node at most {gpus}"),
    ]


def _cpus(partition: Partition, node: Node) -> int:
    limit = partition.max_cpus_per_node
    return node.cpus if limit is None else min(node.cpus, limit)


def _memory(partition: Partition, node: Node) -> int:
    limit = partition.max_mem_mib
    return node.mem_mib if limit is None else min(node.mem_mib, limit)


def _fits(asked: Asked, partition: Partition, node: Node) -> bool:
    return (
        asked.cpus_per_node <= _cpus(partition, node)
        and asked.mem_mib <= _memory(partition, node)
        and asked.resources.node_gpus <= node.gpus
        and has_features(asked.constraint or "", node.features)
    )


def has_features(constraint: str, features: frozenset[str]) -> bool:
    """`a&b` or `a|b`; whatever is more than that (counts, brackets) is left to Slurm."""
    if not re.fullmatch(r"[\w.:=+-]+(?:(&[\w.:=+-]+)*|(\|[\w.:=+-]+)*)", constraint):
        return True
    if "|" in constraint:
        return bool(set(constraint.split("|")) & features)
    return set(constraint.split("&")) <= features


def _each(asked: Asked) -> str:
    wants = asked.resources
    parts = [
        _counted(asked.cpus_per_node, "core"),
        f"{asked.mem_mib} MiB" if asked.memory else "",
        _counted(wants.node_gpus, "GPU") if wants.node_gpus else "",
        f"the feature {asked.constraint}" if asked.constraint else "",
    ]
    return ", ".join(part for part in parts if part)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def asked_preflight(resources: Resources, site: Site, environment: Mapping[str, str]) -> Asked:
    """What sbatch will really ask for: its variables go before the script's lines."""
    return Asked(
        resources,
        partition=environment.get("SBATCH_PARTITION") or site.partition,
        account=environment.get("SBATCH_ACCOUNT") or site.account,
        qos=environment.get("SBATCH_QOS") or site.qos,
        constraint=environment.get("SBATCH_CONSTRAINT") or site.constraint,
        reservation=environment.get("SBATCH_RESERVATION") or site.reservation,
        memory=site.memory != "none",
    )


def refusal(asked: Asked, known: Capacity) -> str | None:
    """Why it would be refused or wait forever, and what would do; None where nothing is known
    to speak against it."""
    reasons = [*_unknown(asked, known), *_partition_reasons(asked, known)]
    return "; ".join(reasons) or None


def _unknown(asked: Asked, known: Capacity) -> Iterator[str]:
    for word, name, there in (
        ("account", asked.account, known.accounts),
        ("qos", asked.qos, known.qos),
        ("reservation", asked.reservation, known.reservations),
    ):
        if name is None or there is None or _among(name, there):
            continue
        names = sorted(there)
        yield (
            f"{word} {name!r} is not one that you may use here: set {word} in the site file."
            f"{did_you_mean(name, names)} There are: {', '.join(names[:20]) or 'none'}"
        )


def _among(name: str, there: Collection[str]) -> bool:
    """In any case, as Slurm takes them; one of several."""
    return bool(set(name.lower().split(",")) & {each.lower() for each in there})


def _partition_reasons(asked: Asked, known: Capacity) -> list[str]:
    if known.partitions is None:
        return []
    chosen = _select_partitions(asked, known.partitions, known.routed)
    if isinstance(chosen, str):
        return [chosen]
    each = [list(against(asked, partition, known)) for partition in chosen]
    if not all(each):  # Slurm takes the one that does
        return []
    return [f"{'; '.join(each[0])}{_elsewhere(asked, chosen, known.partitions, known)}"]


def _select_partitions(asked: Asked, there: list[Partition], routed: bool) -> list[Partition] | str:
    """Those that the job is sent to, or why there are none."""
    names = [partition.name for partition in there]
    listed = f"There are: {', '.join(names) or 'none'}"
    if asked.partition is None and routed:
        return there
    if asked.partition is None:
        default = [partition for partition in there if partition.default]
        return default or (
            "no partition is named, and the cluster has no default: set partition in the site "
            f"file. {listed}"
        )
    wanted = asked.partition.split(",")
    missing = [name for name in wanted if name not in names]
    if missing:
        return (
            f"partition {missing[0]!r} does not exist here: set partition in the site file."
            f"{did_you_mean(missing[0], names)} {listed}"
        )
    return [partition for partition in there if partition.name in wanted]


def _elsewhere(
    asked: Asked, tried: list[Partition], there: list[Partition], known: Capacity
) -> str:
    others = [one for one in there if one not in tried]
    fit = [one.name for one in others if not list(against(asked, one, known))]
    return f"; what would do: partition {' or '.join(fit[:6])} in the site file" if fit else ""


SHOW: Final = ("scontrol", "--all", "--oneliner", "show")
LIST: Final = ("sacctmgr", "--noheader", "--parsable2", "show")
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a site's jobs may ask for."""

    site: Site
    known: Capacity

    @classmethod
    def of(cls, site: Site, user: str) -> Self:
        """Asks Slurm; what does not answer is not known, and told in `known.problems`."""
        return cls(site, _ask(site, user))

    @classmethod
    def unknown(cls) -> Self:
        """Nothing is refused."""
        return cls(Site(), Capacity())

    def refusal(self, resources: Resources) -> str | None:
        """Why Slurm would refuse it or let it wait forever; None where nothing is known of it."""
        return refusal(asked_preflight(resources, self.site, os.environ), self.known)

    def notes(self) -> list[str]:
        problems = "; ".join(self.known.problems)
        return [f"not checked against the cluster's limits: {problems}"] if problems else []


def _ask(site: Site, user: str) -> Capacity:
    problems: list[str] = []

    def said(read: Callable[[str], T], *command: str) -> T | None:
        text = query.run_query(list(command), problems)
        return read(text) if text else None

    if {"clusters", "M"} & set(site.additional_parameters):
        return Capacity(problems=["the site sends its jobs to other clusters"])
    partitions = said(cluster_info.partitions, *SHOW, "partition")
    if not partitions:  # then nothing else answers, either
        return Capacity(problems=problems)
    nodes = said(cluster_info.nodes, *SHOW, "node")
    wants = asked_preflight(Resources(), site, os.environ)
    accounts = qos = reservations = None
    routed = not wants.partition and said(cluster_info.routed, "scontrol", "show", "config")
    if wants.account:
        asked = ("associations", "where", f"user={user}", "format=account")
        accounts = said(cluster_info.accounts, *LIST, *asked)
    if wants.qos:
        qos = said(cluster_info.qos, *LIST, "qos", "format=name,flags,maxwall")
    if wants.reservation:
        reservations = said(cluster_info.reservations, *SHOW, "reservation")
    return Capacity(
        partitions, nodes, accounts or None, qos or None, reservations, bool(routed), problems
    )
