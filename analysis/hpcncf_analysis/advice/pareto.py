"""Time against cost: the Pareto front, and the knee that is worth its cost."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from hpcncf_analysis.configurations import Configuration
from hpcncf_analysis.quality import configurations_of_sound_quality

# More cores are worth asking for while each delivers this share of the most that any core does:
# while a unit of work costs at most 1 / WORTH of the cheapest.
MIN_CORE_YIELD: Final = 0.7

Priced = TypeVar("Priced")


def within_price_limit(
    those: Sequence[Priced],
    price: Callable[[Priced], float],
    kind: Callable[[Priced], Hashable] = lambda _: None,
) -> list[Priced]:
    """Those that cost at most 1 / `WORTH` of the cheapest of their kind, in the order given: the
    quickest of them is the knee. Prices of two kinds are not compared."""
    least: dict[Hashable, float] = {}
    for each in those:
        least[kind(each)] = min(price(each), least.get(kind(each), price(each)))
    return [each for each in those if price(each) * MIN_CORE_YIELD <= least[kind(each)]]


MILLION: Final = 1e6

Choice = Literal["knee", "fastest", "cheapest"]


@dataclass(frozen=True)
class PricedConfiguration:
    """One configuration with the time that it takes for a unit of work, and what that costs."""

    one: Configuration
    seconds: float
    core_h: float
    """Core-hours allocated for a unit."""
    gpu_h: float
    """GPU-hours allocated for a unit."""
    beaten_by: str | None = None
    """The label of one that takes no longer, costs no more, and is better in one of the two."""

    @property
    def key(self) -> str:
        """The configuration's: labels may be alike."""
        return self.one.key

    @property
    def label(self) -> str:
        return self.one.label

    @property
    def on_gpus(self) -> bool:
        return self.gpu_h > 0

    @property
    def price(self) -> float:
        """GPU-hours where it has GPUs, else core-hours."""
        return self.gpu_h if self.on_gpus else self.core_h

    @property
    def cost(self) -> tuple[float, float]:
        """GPU-hours before core-hours: they have no common price, and GPUs are what is short."""
        return self.gpu_h, self.core_h


@dataclass(frozen=True)
class Choices:
    """What there is to choose from."""

    unit: str
    """What a standing's time and cost are for: `epoch`, `run`, `million instances`."""
    standings: tuple[PricedConfiguration, ...]
    """All whose quality holds, the quickest first."""
    unsound: tuple[Configuration, ...]
    """Those left out: their quality is worse than chance explains."""
    fastest: PricedConfiguration
    cheapest: PricedConfiguration
    knee: PricedConfiguration
    """The fastest that is worth its cost (`worth_their_cost`)."""

    def chosen(self, choice: Choice) -> PricedConfiguration:
        chosen: PricedConfiguration = getattr(self, choice)
        return chosen

    @property
    def front(self) -> tuple[PricedConfiguration, ...]:
        """Pareto's: whoever is quicker costs more."""
        return tuple(each for each in self.standings if each.beaten_by is None)

    @property
    def dominated(self) -> tuple[PricedConfiguration, ...]:
        return tuple(each for each in self.standings if each.beaten_by is not None)


def build_choices(configurations: Sequence[Configuration]) -> Choices | None:
    """None where no configuration has a speed."""
    sound = configurations_of_sound_quality(configurations)
    if not sound:
        return None
    unit, seconds = _unit(sound)
    kept = {one.key for one in sound}
    found = sorted((_standing(one, seconds(one)) for one in sound), key=_speed_order)
    placed = tuple(_mark_dominated(found))
    return Choices(
        unit=unit,
        standings=placed,
        unsound=tuple(one for one in configurations if one.speed and one.key not in kept),
        fastest=placed[0],
        cheapest=min(placed, key=lambda each: (each.cost, each.seconds)),
        knee=worth_their_cost(placed)[0],
    )


def _unit(sound: Sequence[Configuration]) -> tuple[str, Callable[[Configuration], float]]:
    """An epoch of the same data where all know its time; else a run, or instances."""
    datasets = {one.rows[0].get("data_key") for one in sound}
    if len(datasets) == 1 and all(one.median("seconds_per_epoch") for one in sound):
        return "epoch", lambda one: one.median("seconds_per_epoch") or 0.0
    if sound[0].by_time:
        return "run", lambda one: one.median("elapsed_s") or 0.0
    return "million instances", lambda one: MILLION / (one.speed or 1.0)


def _standing(one: Configuration, seconds: float) -> PricedConfiguration:
    return PricedConfiguration(
        one, seconds, one.cores * seconds / 3600, allocated_gpus(one) * seconds / 3600
    )


def allocated_gpus(one: Configuration) -> float:
    """GPUs that a run is allocated, over all its nodes, and its part of those that it shares; none
    where nobody asked for any."""
    row = one.rows[0]
    shared = row.get("runs_per_gpu") or 1
    return 0.0 if one.by_hand else float(row["nodes"] * row["gpus_per_node"] / shared)


def _speed_order(each: PricedConfiguration) -> tuple[float, tuple[float, float], str]:
    return each.seconds, each.cost, each.label


def _mark_dominated(quickest_first: Sequence[PricedConfiguration]) -> Iterator[PricedConfiguration]:
    """Each with whoever beats it: of all that are as quick the cheapest, if it costs no more."""
    best: PricedConfiguration | None = None
    for each in quickest_first:
        beaten = (
            best and best.cost <= each.cost and _speed_order(best)[:2] != _speed_order(each)[:2]
        )
        yield replace(each, beaten_by=best.label if best and beaten else None)
        if best is None or each.cost < best.cost:
            best = each


def worth_their_cost(standings: Sequence[PricedConfiguration]) -> list[PricedConfiguration]:
    """Those that are worth their cost among their kind: with GPUs, or without."""
    return within_price_limit(standings, lambda each: each.price, lambda each: each.on_gpus)
