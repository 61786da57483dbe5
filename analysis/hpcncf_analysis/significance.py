"""Bootstrap interval and permutation test for the ratio of two speeds.

The ratio of the medians has a percentile bootstrap interval (Efron, Tibshirani 1993), and a
permutation test of the difference of the mean logarithms (Fisher; Good 2005), exact where the ways
to deal the repeats out are few enough to count. Both must agree before a difference is called real:
with few repeats the bootstrap alone is too sure. Three against three, or two against five, can
reach a p of 0.1, which is one false alarm in twenty towards slower; fewer are too few to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, exp, log, prod
from statistics import mean, median
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["faster", "slower", "no significant difference", "too few repeats", "no effect"]
"""`no effect`: all that was changed are settings that could not act."""
Pair = tuple[Sequence[float], Sequence[float]]

ALPHA: Final = 0.1
CONFIDENCE: Final = 0.95
RESAMPLES: Final = 5000
# More ways to deal the repeats out than this are sampled.
COUNTED: Final = 20_000
SEED: Final = 20_170_403
# Equal statistics of differently ordered sums.
_ROUNDING: Final = 1e-12


@dataclass(frozen=True)
class Ratio:
    """How many times as fast B is as A."""

    value: float
    low: float | None
    """Of the interval at `CONFIDENCE`; None where a side has one repeat."""
    high: float | None
    p: float | None
    """Share of the ways to deal the repeats out that differ as much, in either direction."""
    verdict: Verdict

    def slower_by(self, threshold: float) -> bool:
        return self.value < 1 - threshold


def compare_repeats(pairs: Sequence[Pair]) -> Ratio:
    """The speeds of A's and of B's repeats, all above 0, of one configuration or of several: the
    geometric mean of the ratios of their medians. Repeats are dealt out within their pair."""
    value = exp(mean(log(median(b) / median(a)) for a, b in pairs))
    if any(min(len(a), len(b)) < 2 for a, b in pairs):
        return Ratio(value, None, None, None, "too few repeats")
    rng = np.random.default_rng(SEED)
    logs = [np.log(_resampled(b, rng) / _resampled(a, rng)) for a, b in pairs]
    ends = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    low, high = map(float, np.quantile(np.exp(np.mean(logs, axis=0)), ends))
    few = len(pairs) == 1 and ways_to_deal(pairs) <= COUNTED
    p = _exact(*pairs[0]) if few else _sampled(pairs)
    if least_p(pairs) > ALPHA:
        return Ratio(value, low, high, p, "too few repeats")
    if p > ALPHA or low <= 1 <= high:
        return Ratio(value, low, high, p, "no significant difference")
    return Ratio(value, low, high, p, "faster" if low > 1 else "slower")


def ways_to_deal(pairs: Sequence[Pair]) -> int:
    return prod(comb(len(a) + len(b), len(a)) for a, b in pairs)


def least_p(pairs: Sequence[Pair]) -> float:
    """The p of one dealing and of its mirror image: with fewer ways to deal, too few repeats.

    With equal numbers in A and B no p is smaller. With unequal ones the mirror image may differ by
    less, so that p is half of this; towards slower that is no rarer a chance, and not relied upon.
    """
    return min(2 / ways_to_deal(pairs), 1.0)


def _resampled(values: Sequence[float], rng: np.random.Generator) -> NDArray[np.float64]:
    """Medians of as many repeats, drawn with replacement. Shape (RESAMPLES,)."""
    drawn = rng.choice(np.asarray(values, dtype=float), size=(RESAMPLES, len(values)))
    return np.asarray(np.median(drawn, axis=1))


def _exact(a: Sequence[float], b: Sequence[float]) -> float:
    logs = np.log(np.asarray([*a, *b], dtype=float))
    seen = abs(logs[: len(a)].mean() - logs[len(a) :].mean())
    chosen = np.array(list(combinations(range(len(logs)), len(a))))
    ours = logs[chosen].sum(axis=1)
    apart = np.abs(ours / len(a) - (logs.sum() - ours) / len(b))
    return float(np.mean(apart >= seen - _ROUNDING))


def _sampled(pairs: Sequence[Pair]) -> float:
    """Its own dealing counts as one of them, so that p is never 0."""
    rng = np.random.default_rng(SEED)
    seen, apart = 0.0, np.zeros(RESAMPLES)
    for a, b in pairs:
        logs = np.log(np.asarray([*a, *b], dtype=float))
        dealt = rng.permuted(np.tile(logs, (RESAMPLES, 1)), axis=1)
        apart += dealt[:, len(a) :].mean(axis=1) - dealt[:, : len(a)].mean(axis=1)
        seen += float(logs[len(a) :].mean() - logs[: len(a)].mean())
    return float((1 + np.sum(np.abs(apart) >= abs(seen) - _ROUNDING)) / (1 + RESAMPLES))
