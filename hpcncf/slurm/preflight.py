"""What runs ask for, held against what the cluster allows, before they queue for ever."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from hpcncf.errors import nearest
from hpcncf.slurm.allowed import Asked, against
from hpcncf.slurm.capacity import Capacity, Partition
from hpcncf.slurm.request import Site
from hpcncf.spec import Resources


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
    """Why it would be refused or wait for ever, and what would do; None where nothing is known
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
            f"{nearest(name, names)} There are: {', '.join(names[:20]) or 'none'}"
        )


def _among(name: str, there: Collection[str]) -> bool:
    """In any case, as Slurm takes them; one of several."""
    return bool(set(name.lower().split(",")) & {each.lower() for each in there})


def _partition_reasons(asked: Asked, known: Capacity) -> list[str]:
    if known.partitions is None:
        return []
    chosen = _chosen(asked, known.partitions, known.routed)
    if isinstance(chosen, str):
        return [chosen]
    each = [list(against(asked, partition, known)) for partition in chosen]
    if not all(each):  # Slurm takes the one that does
        return []
    return [f"{'; '.join(each[0])}{_elsewhere(asked, chosen, known.partitions, known)}"]


def _chosen(asked: Asked, there: list[Partition], routed: bool) -> list[Partition] | str:
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
            f"{nearest(missing[0], names)} {listed}"
        )
    return [partition for partition in there if partition.name in wanted]


def _elsewhere(
    asked: Asked, tried: list[Partition], there: list[Partition], known: Capacity
) -> str:
    others = [one for one in there if one not in tried]
    fit = [one.name for one in others if not list(against(asked, one, known))]
    return f"; what would do: partition {' or '.join(fit[:6])} in the site file" if fit else ""
