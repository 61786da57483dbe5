"""What very many ranks would do if the assumptions held: simulated, never predicted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hpcncf_analysis.configurations import counted
from hpcncf_analysis.predict import model
from hpcncf_analysis.predict.model import LAWS, Measured, Point, Refusal, batch, steps_of

FLOAT_BYTES: Final = 4


@dataclass(frozen=True)
class Network:
    """What lies between the ranks, assumed, never measured."""

    latency_s: float
    """Of one message."""
    bytes_per_s: float
    """Of each rank, out and in."""


@dataclass(frozen=True)
class Simulated:
    ranks: int
    share: float
    """Positives of a step for each rank."""
    phases: dict[str, float]
    """Seconds of a step, by part."""
    seconds_per_epoch: float
    speedup: float
    """Against one rank, simulated too."""

    @property
    def efficiency(self) -> float:
        return self.speedup / self.ranks


@dataclass(frozen=True)
class Simulation:
    label: str
    assumptions: list[str]
    sizes: list[Simulated]


def simulate(
    asked: Point,
    known: Sequence[Measured],
    most: int,
    network: Network,
    per_rank: bool = False,
) -> Simulation | Refusal:
    """One rank, then twice as many again and again, then `most`.

    `asked`: of any number of ranks. The batch over all ranks stays as it is or, `per_rank`, each
    rank's share of it does. The model's gradients go out as float32, all of them.
    Refused where the runs do not tell a step's fixed cost from that of its instances: at many ranks
    nothing else counts.
    """
    batch = round(asked.share) if per_rank else asked.batch
    one = replace(asked, ranks=1, ranks_per_node=1, cores=asked.cores / asked.ranks, batch=batch)
    if not _all_reduces(asked):
        return Refusal(
            asked.label,
            "what engine reference sends with sync dense is known for any number of ranks; what "
            "others exchange is not",
        )
    if one.batch < most and not per_rank:
        return Refusal(
            asked.label,
            f"a batch of {one.batch} leaves some of {most} ranks idle; with batch_size_per_rank it "
            "grows with them",
        )
    points_of = [_of_ranks(one, ranks, per_rank) for ranks in _sizes(most)]
    found = _fits(one, known, points_of[-1])
    if isinstance(found, Refusal):
        return found
    same = next(each for each in known if each.point.compute == one.compute)
    bytes_, epoch = FLOAT_BYTES * same.parameters, same.instances_per_epoch
    if not bytes_:
        return Refusal(asked.label, "its records do not tell the number of the model's parameters")
    sizes = list[Simulated]()
    for point in points_of:
        phases = found.phases(point) | _sync(point.ranks, bytes_, network)
        seconds = steps_of(epoch, point) * sum(phases.values())
        speedup = sizes[0].seconds_per_epoch / seconds if sizes else 1.0
        sizes.append(Simulated(point.ranks, point.share, phases, seconds, speedup))
    told = _assumptions(one, points_of[-1], found, bytes_, network)
    return Simulation(asked.label, told, sizes)


def _all_reduces(asked: Point) -> bool:
    dense = dict(asked.sync).get("sync") == repr("dense")
    return dense and dict(asked.compute).get("engine") == repr("reference")


def _of_ranks(one: Point, ranks: int, per_rank: bool) -> Point:
    return replace(one, ranks=ranks, batch=one.batch * ranks if per_rank else one.batch)


@dataclass(frozen=True)
class Fits:
    compute: model.Part
    input: model.Part

    def phases(self, point: Point) -> dict[str, float]:
        found = {"compute": self.compute.fit, "input": self.input.fit}
        return {name: fit.at(LAWS[name][fit.law](point, 0.0)) for name, fit in found.items()}


def _fits(one: Point, known: Sequence[Measured], last: Point) -> Fits | Refusal:
    """The laws of a rank alone, where they hold for the share of the last one as well."""
    found: dict[str, model.Part] = {}
    for name in ("compute", "input"):
        part = model.part(name, one, known)
        if isinstance(part, Refusal):
            return part
        if not part.fit.knows(LAWS[name][part.fit.law](last, 0.0)):
            return Refusal(
                one.label,
                f"runs of one batch size do not tell what of a step's {name} its instances cost",
                batch(one, max(one.batch // 4, 1)),
            )
        found[name] = part
    return Fits(found["compute"], found["input"])


def _sizes(most: int) -> list[int]:
    doubled = [2**power for power in range(most.bit_length()) if 2**power < most]
    return [*doubled, most]


def _sync(ranks: int, bytes_: float, network: Network) -> dict[str, float]:
    """A ring: 2 (R - 1) messages that follow one another, each of 1/R of the bytes."""
    messages = 2 * (ranks - 1)
    seconds = messages * (network.latency_s + bytes_ / ranks / network.bytes_per_s)
    return {"sync": seconds}


def _assumptions(
    one: Point, last: Point, found: Fits, bytes_: float, network: Network
) -> list[str]:
    fitted = f"compute: {found.compute.fit.law}; input: {found.input.fit.law}"
    batch = (
        f"the batch over all ranks stays {one.batch}; a rank's step keeps to the laws fitted "
        f"({fitted}), far below the shares that were run"
    )
    if last.batch > one.batch:
        batch = (
            f"each rank's step keeps {one.batch} positives ({fitted}), so that the batch grows to "
            f"{last.batch:,}: another training, of a quality that nobody measured"
        )
    return [
        f"each rank has {counted(one.cores, 'core')} of its own, as fast as those measured, and "
        "is slowed by no other",
        batch,
        f"every step sends {bytes_ / 1e6:.3g} MB, all gradients as float32, through a ring of 2 "
        "(R - 1) messages (Thakur et al. 2005), and nothing of it overlaps with computing",
        f"a network of {1e6 * network.latency_s:g} µs a message and "
        f"{network.bytes_per_s / 1e9:g} GB/s for each rank, assumed, not measured",
        "no rank is ever late, no message is lost, and the file system serves all at once",
    ]
