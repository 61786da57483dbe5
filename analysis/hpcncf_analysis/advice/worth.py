"""What a core must bring to be worth asking for: the one rule of the report and of `tune`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

# More cores are worth asking for while each delivers this share of the most that any core does:
# while a unit of work costs at most 1 / WORTH of the cheapest.
WORTH: Final = 0.7

Priced = TypeVar("Priced")


def worth_it(
    those: Sequence[Priced],
    price: Callable[[Priced], float],
    kind: Callable[[Priced], Hashable] = lambda _: None,
) -> list[Priced]:
    """Those that cost at most 1 / `WORTH` of the cheapest of their kind, in the order given: the
    quickest of them is the knee. Prices of two kinds are not compared."""
    least: dict[Hashable, float] = {}
    for each in those:
        least[kind(each)] = min(price(each), least.get(kind(each), price(each)))
    return [each for each in those if price(each) * WORTH <= least[kind(each)]]
