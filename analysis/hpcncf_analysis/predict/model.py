"""A step's parts, each fitted to the runs that share what it depends on, and put together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcncf_analysis.predict import laws, support
from hpcncf_analysis.predict.answer import Refusal
from hpcncf_analysis.predict.fit import Fit, fitted
from hpcncf_analysis.predict.points import Measured, Point


@dataclass(frozen=True)
class Part:
    """One part of a step: its cost, and the law that told it."""

    value: float
    fit: Fit


@dataclass(frozen=True)
class Step:
    """Seconds of one optimiser step, by part."""

    compute: Part
    input: Part
    sync: Part | None
    """None of one rank."""

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    @property
    def phases(self) -> dict[str, float]:
        sync = {"sync": self.sync.value} if self.sync else {}
        return {"compute": self.compute.value, "input": self.input.value, **sync}


def step(asked: Point, known: Sequence[Measured]) -> Step | Refusal:
    """What a step of this point takes, by what was measured of others."""
    compute, input_ = part("compute", asked, known), part("input", asked, known)
    for each in (compute, input_):
        if isinstance(each, Refusal):
            return each
    assert isinstance(compute, Part)
    assert isinstance(input_, Part)
    if asked.ranks == 1:
        return Step(compute, input_, None)
    sync = exchange(asked, known)
    return sync if isinstance(sync, Refusal) else Step(compute, input_, sync)


def exchange(asked: Point, known: Sequence[Measured]) -> Part | Refusal:
    several = [one for one in known if one.point.ranks > 1]
    sent = part("bytes", asked, several)
    return sent if isinstance(sent, Refusal) else part("sync", asked, several, sent.value)


def part(name: str, asked: Point, known: Sequence[Measured], bytes_: float = 0.0) -> Part | Refusal:
    """By the likeliest of the laws that the measured points determine where it is asked.

    `bytes_`: of the asked point's step, for each rank.
    """
    family = laws.family_laws(name, asked)
    related = [one for one in known if laws.family_laws(name, one.point) == family]
    refused = support.refusal(name, asked, [one.point for one in related])
    if refused:
        return refused
    found: list[tuple[float, int, Part]] = []
    for number, (law, features) in enumerate(laws.LAWS[name].items()):
        fit, unlikely = _fit(name, law, features, related)
        wanted = features(asked, bytes_)
        if fit.knows(wanted):
            found.append((unlikely, number, Part(fit.at(wanted), fit)))
    if not found:
        return Refusal(
            asked.label, f"the runs do not tell apart what its {name} depends on: too few differ"
        )
    return min(found, key=lambda each: each[:2])[2]


def _fit(
    name: str, law: str, features: laws.Features, related: Sequence[Measured]
) -> tuple[Fit, float]:
    costs = [laws.cost(name, one) for one in related]
    rows = [features(one.point, one.sync_bytes) for one in related]
    scales = [laws.scale(name, one) for one in related]
    return fitted(law, rows, costs, scales)
