"""How wrong the model is about configurations that it was not shown, and the interval. Pure.

The interval is jackknife+ (Barber, Candès, Ramdas and Tibshirani 2021) on the logarithm: each
configuration in turn is left out, the rest predict both it and what is asked, and its error is put
upon that. A tenth of such bounds may lie outside at either end; of fewer than 19, none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

from hpcncf_analysis.predict import model
from hpcncf_analysis.predict.answer import Refusal
from hpcncf_analysis.predict.points import Measured, Point

# Errors of fewer held-out configurations make no interval.
FEWEST: Final = 3
# Of the bounds at either end lies outside.
ONE_IN: Final = 10


@dataclass(frozen=True)
class HeldOut:
    """One configuration, predicted from all others."""

    one: Measured
    step_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.step_s / self.one.step_s - 1


def held_out_held_out(known: Sequence[Measured]) -> tuple[list[HeldOut], list[Refusal]]:
    """Every configuration without itself: those predicted, and those refused."""
    told: list[HeldOut] = []
    refused: list[Refusal] = []
    for one in known:
        said = model.step(one.point, _without(known, one))
        if isinstance(said, Refusal):
            refused.append(said)
        else:
            told.append(HeldOut(one, said.seconds))
    return told, refused


def _without(known: Sequence[Measured], one: Measured) -> list[Measured]:
    return [other for other in known if other is not one]


def interval(
    asked: Point, known: Sequence[Measured], errors: Sequence[HeldOut]
) -> tuple[float, float] | None:
    """Seconds of a step; None where fewer than three configurations could be held out."""
    lows, highs = list[float](), list[float]()
    for each in errors:
        said = model.step(asked, _without(known, each.one))
        if isinstance(said, Refusal):
            said = model.step(asked, known)
        assert isinstance(said, model.Step)
        wrong = abs(log(each.step_s / each.one.step_s))
        lows.append(log(said.seconds) - wrong)
        highs.append(log(said.seconds) + wrong)
    if len(lows) < FEWEST:
        return None
    low, high = _ends(len(lows))
    return exp(sorted(lows)[low]), exp(sorted(highs)[high])


def _ends(number: int) -> tuple[int, int]:
    """Which of the sorted lower and upper bounds are the interval's ends."""
    outside = max((number + 1) // ONE_IN - 1, 0)
    return outside, number - 1 - outside
