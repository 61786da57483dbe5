"""Is a candidate faster than its baseline? The one answer for report, compare, remedies and tune.

The exact rank-sum test (Wilcoxon 1945; Mann, Whitney 1947) and the interval that belongs to it
(Moses; Hollander, Wolfe, Chicken 2014, section 4.3): of all ratios of one repeat of the candidate
to one of the baseline, as many are dropped at either end as the test allows. So the interval
excludes 1 exactly where the test finds a difference, nothing is assumed about how speeds scatter,
and a single disturbed repeat cannot decide. Three repeats against three, or two against five, can
just reach `ALPHA`; with fewer no data can, and the answer is `TOO_FEW`.

Several pairs of configurations are one question, too: their ranks are counted within each pair and
added (van Elteren 1960, with equal weights).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from math import comb, exp, log, prod, sqrt
from statistics import NormalDist, fmean, median
from typing import Final

ALPHA: Final = 0.1
"""Chance of calling equal speeds different: one false alarm in twenty towards slower."""
MAX_EXACT: Final = 2_500
"""Ratios of two repeats; from more on, the normal approximation is as good."""


class Verdict(StrEnum):
    """Verdict of the repeats on the candidate's speed."""

    FASTER = "faster"
    SLOWER = "slower"
    ALIKE = "no significant difference"
    TOO_FEW = "too few repeats"
    NO_EFFECT = "no effect"
    """All that was changed are settings that could not act."""

    @property
    def is_difference(self) -> bool:
        return self in (Verdict.FASTER, Verdict.SLOWER)


@dataclass(frozen=True)
class Ratio:
    """Speed of the candidate over that of the baseline."""

    value: float
    """Ratio of the medians; of several pairs, the geometric mean."""
    low: float | None
    """End of the interval with `confidence`; None if nothing was repeated."""
    high: float | None
    p: float | None
    """Chance of ranks at least as far apart, in either direction, if both were equally fast."""
    verdict: Verdict
    confidence: float | None = None
    """That of the interval: 0.9 or more, less where there are too few repeats."""

    def scaled(self, factor: float) -> Ratio:
        """Ratio of a figure that is speed times a constant, such as the speed of one core.

        Value and interval are multiplied by `factor`; the verdict follows from the new
        interval, unless there were too few repeats or the settings had no effect.
        """
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        verdict = self.verdict
        if verdict not in (Verdict.TOO_FEW, Verdict.NO_EFFECT) and low and high:
            verdict = _verdict(low, high)
        return replace(self, value=self.value * factor, low=low, high=high, p=None, verdict=verdict)

    def is_within(self, share: float) -> bool:
        """Whether the repeats rule out a difference of more than `share` in either direction."""
        if self.low is None or self.high is None or self.verdict is Verdict.TOO_FEW:
            return False
        return self.low >= 1 - share and self.high <= 1 + share

    def is_slower_by(self, share: float) -> bool:
        return self.value < 1 - share


def compare_repeats(baseline: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """Compare the speeds of all repeats of two configurations; speeds are above 0."""
    return compare_pairs([(baseline, candidate)])


def compare_times(baseline: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """Compare two configurations by the time or cost of the same work, where less is faster."""
    return compare_repeats(candidate, baseline)  # baseline / candidate: a ratio of speeds


def compare_pairs(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Ratio:
    """Compare (baseline, candidate) speeds of several configurations as a single change."""
    value = exp(fmean(log(median(after) / median(before)) for before, after in pairs))
    ratios = sorted(b / a for before, after in pairs for a in before for b in after)
    sizes = tuple(sorted((len(before), len(after)) for before, after in pairs))
    rank = _interval_rank(sizes)
    if rank == 0 and len(ratios) == len(pairs):
        return Ratio(value, None, None, None, Verdict.TOO_FEW)
    # A mean of unlike pairs may lie outside: a wider interval is the careful one.
    low = min(ratios[max(rank, 1) - 1], value)
    high = max(ratios[-max(rank, 1)], value)
    against = min(sum(each <= 1 for each in ratios), sum(each >= 1 for each in ratios))
    return Ratio(
        value=value,
        low=low,
        high=high,
        p=min(1.0, 2 * _chance_of_at_most(against, sizes)),
        verdict=_verdict(low, high) if rank else Verdict.TOO_FEW,
        confidence=max(0.0, 1 - 2 * _chance_of_at_most(max(rank, 1) - 1, sizes)),
    )


def _verdict(low: float, high: float) -> Verdict:
    if low > 1:
        return Verdict.FASTER
    return Verdict.SLOWER if high < 1 else Verdict.ALIKE


def _interval_rank(sizes: tuple[tuple[int, int], ...]) -> int:
    """Rank in the sorted ratios of each end of the confidence interval, from 1; 0 if none exists.

    It is 0 where so few repeats could not exclude the ratio 1, whatever they show.
    """
    half = sum(n * m for n, m in sizes) // 2
    return bisect_right(range(half), ALPHA, key=lambda rank: 2 * _chance_of_at_most(rank, sizes))


def _chance_of_at_most(number: int, sizes: tuple[tuple[int, int], ...]) -> float:
    """Chance that at most `number` ratios are below 1 if both sides are equally fast."""
    total = sum(n * m for n, m in sizes)
    if total > MAX_EXACT:
        spread = sqrt(sum(n * m * (n + m + 1) for n, m in sizes) / 12)
        return NormalDist(total / 2, spread).cdf(number + 0.5)
    return _orders_with_at_most(sizes)[number] / prod(comb(n + m, n) for n, m in sizes)


@lru_cache(maxsize=64)
def _orders_with_at_most(sizes: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Number of orders of all repeats with at most 0, 1, 2, ... ratios below 1.

    Their generating function is a product of Gaussian binomial coefficients, one for each pair.
    """
    counts = [1] + [0] * sum(n * m for n, m in sizes)
    for n, m in sizes:
        for step in range(1, n + 1):
            for at in range(len(counts) - 1, m + step - 1, -1):  # times 1 - q^(m + step)
                counts[at] -= counts[at - m - step]
            for at in range(step, len(counts)):  # over 1 - q^step
                counts[at] += counts[at - step]
    return tuple(accumulate(counts))
