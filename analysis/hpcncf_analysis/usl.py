"""Fit the universal scalability law; without crosstalk it is Amdahl's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from hpcncf.errors import HpcncfError

Float64s = npt.NDArray[np.float64]

# Sums of squares that differ by less are equal but for rounding.
ROUNDING: Final = 1e-9
# Two parameters and a rate are no law of fewer sizes: the curve would go through every point.
FEWEST_SIZES: Final = 4
# How far beyond what was measured a law is used, up and down.
REACH: Final = 4
# A law further than this from a size's median speed does not describe the measurements.
MISFIT: Final = 0.25
CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000
SEED: Final = 20260105


def range_confidence(repeats: int) -> float | None:
    """Confidence that the range of `repeats` values holds the true median; None below two.

    1 - 2^(1 - n), whatever the values' distribution: the median lies outside only where all n fell
    on the same side of it (Conover, Practical Nonparametric Statistics, 1999).
    """
    return None if repeats < 2 else 1 - 0.5 ** (repeats - 1)


def fit_non_negative(design: Float64s, targets: Float64s) -> Float64s:
    """Non-negative least squares: [case, feature] x >= 0 that minimises |design x - target|.

    design: [point, feature], of a few features; targets: [case, point]. The solution is the free
    least squares of the features that it uses (Lawson, Hanson 1974): all sets of features are
    solved at once, of equally good ones the smaller is taken. `scipy.optimize.nnls` is no shorter
    here, takes one target at a time, and is 140 MB to install.
    """
    used = np.array(list(product((False, True), repeat=design.shape[1])))[:, None]
    columns = design * used  # [set, point, feature]
    free = targets @ np.linalg.pinv(columns).swapaxes(1, 2) * used  # [set, case, feature]
    error = ((free @ columns.swapaxes(1, 2) - targets) ** 2).sum(axis=2)
    error[(free < 0).any(axis=2)] = inf
    best = (error <= error.min(axis=0) * (1 + ROUNDING)).argmax(axis=0)
    found: Float64s = free[best, np.arange(len(targets))]
    return found


@dataclass(frozen=True)
class Refusal:
    """Reason why no law could be fitted, as the end of a sentence."""

    reason: str


@dataclass(frozen=True)
class Knee:
    """The size of the highest speed, N* = sqrt((1 - sigma) / kappa); more makes it slower."""

    size: float
    low: float | None
    """None: one repeat of each size gives no interval."""
    high: float | None
    """Infinite where some resamples have no knee within reach."""


class OutOfReach(HpcncfError):
    """A size too far from those measured for the law to be used."""


# With kappa = 0 the USL (Gunther, Guerrilla Capacity Planning, 2007) is Amdahl's law (1967),
# S(N) = 1 / (s + (1 - s) / N), and sigma is his serial share s.


def relative_speed(size: float, sigma: float, kappa: float) -> float:
    """Speed at a size relative to size 1 by the USL, X(N) / lambda."""
    return size / (1 + sigma * (size - 1) + kappa * size * (size - 1))


def peak_size(sigma: float, kappa: float) -> float:
    """Size N* of the highest speed by the USL, at least 1; infinite if kappa is 0."""
    return max(sqrt((1 - sigma) / kappa), 1.0) if kappa > 0 else inf


@dataclass(frozen=True)
class Law:
    """Universal scalability law, fitted to the median speed at each measured size.

    X(N) = lambda N / (1 + sigma (N - 1) + kappa N (N - 1)). Sizes are cores or ranks, speeds are in
    instances per second.
    """

    rate_of_one: float
    """lambda: the speed of size 1."""
    sigma: float
    """Contention, 0 to 1: Amdahl's serial share."""
    kappa: float
    """Crosstalk, 0 or more: what every one costs every other. With 0 the law is Amdahl's."""
    sizes: tuple[float, ...]
    """Measured, ascending."""
    misfit: float
    """The largest relative difference between the law and a size's median speed."""
    resamples: tuple[tuple[float, float, float], ...] = ()
    """(lambda, sigma, kappa) of each resample; empty: one repeat of each size, no interval."""

    @property
    def smallest(self) -> float:
        return self.sizes[0] / REACH

    @property
    def largest(self) -> float:
        """Largest size at which the law is used: REACH times the largest measured size."""
        return self.sizes[-1] * REACH

    def rate(self, size: float) -> float:
        """Speed at a size by the law, in instances per second.

        Raises OutOfReach if the size is too far from those measured.
        """
        if not self.smallest <= size <= self.largest:
            raise OutOfReach(
                f"the law was fitted to sizes {self.sizes[0]:g} to {self.sizes[-1]:g} and is used "
                f"from {self.smallest:g} to {self.largest:g}: came {size:g}"
            )
        return self.rate_of_one * relative_speed(size, self.sigma, self.kappa)

    def interval(self, size: float) -> tuple[float, float] | None:
        """95 % interval of the median speed at a size; None if no size was repeated.

        The speed of a single run may lie outside it. Raises OutOfReach as `rate` does.
        """
        return _central_interval(
            self.rate(size),
            [rate * relative_speed(size, sigma, kappa) for rate, sigma, kappa in self.resamples],
        )

    def sigma_interval(self) -> tuple[float, float] | None:
        return _central_interval(self.sigma, [sigma for _, sigma, _ in self.resamples])

    def kappa_interval(self) -> tuple[float, float] | None:
        return _central_interval(self.kappa, [kappa for _, _, kappa in self.resamples])

    @property
    def knee(self) -> Knee | None:
        """Size of the highest speed; None if speed grows up to the largest size the law covers."""
        size = peak_size(self.sigma, self.kappa)
        if size > self.largest:
            return None
        peaks = [peak_size(sigma, kappa) for _, sigma, kappa in self.resamples]
        ends = _central_interval(size, [one if one <= self.largest else inf for one in peaks])
        return Knee(size, *(ends or (None, None)))


def _central_interval(value: float, resampled: Sequence[float]) -> tuple[float, float] | None:
    """Central 95 % interval of resampled values, widened to hold `value`; None without any."""
    if not resampled:
        return None
    tail = (1 - CONFIDENCE) / 2
    # Of the values themselves: between one and infinity nothing can be interpolated.
    low, high = np.quantile(resampled, [tail, 1 - tail], method="nearest").tolist()
    return min(low, value), max(high, value)


def fit_law(sizes: Sequence[float], speeds: Sequence[Sequence[float]]) -> Law | Refusal:
    """Fit the law to the median speed of each size by least squares of relative errors.

    `speeds`: of each size its repeats. Intervals come from a bootstrap over the repeats
    (Efron, Tibshirani 1993): each size's repeats are drawn anew from all repeats' deviations.
    """
    assert len(set(sizes)) == len(sizes), "each size once, with all its repeats"
    if len(sizes) < FEWEST_SIZES:
        measured = ", ".join(f"{size:g}" for size in sorted(sizes)) or "none"
        return Refusal(f"a law needs {FEWEST_SIZES} sizes or more; measured: {measured}")
    if not all(repeats and min(repeats) > 0 for repeats in speeds):
        return Refusal("a size has no speed above 0")
    order = sorted(range(len(sizes)), key=lambda at: sizes[at])
    sizes, speeds = [sizes[at] for at in order], [speeds[at] for at in order]
    # N / X(N) = s + b N + c N (N - 1) with 1 / (s + b) = lambda, b / (s + b) = sigma at most 1 and
    # c / (s + b) = kappa, all at least 0.
    n = np.array(sizes, float)
    terms = np.stack([np.ones_like(n), n, n * (n - 1)], axis=1)
    medians = np.array([np.median(repeats) for repeats in speeds])
    drawn = medians * np.exp(_bootstrap_deviations(speeds))
    relative = medians / np.vstack([medians, drawn])
    s, b, c = fit_non_negative(terms / (n / medians)[:, None], relative).T
    if s[0] + b[0] <= 0:
        return Refusal("the measurements do not follow the law: speed falls from the first size on")
    parameters = np.stack([1 / (s + b), b / (s + b), c / (s + b)], axis=1)[s + b > 0]
    (rate, sigma, kappa), *resamples = map(tuple, parameters.tolist())
    misfit = max(
        abs(rate * relative_speed(size, sigma, kappa) / median - 1)
        for size, median in zip(sizes, medians, strict=True)
    )
    if misfit > MISFIT:
        return Refusal(f"the measurements do not follow the law: up to {misfit:.0%} apart")
    return Law(rate, sigma, kappa, tuple(sizes), misfit, tuple(resamples))


def _bootstrap_deviations(speeds: Sequence[Sequence[float]]) -> Float64s:
    """[resample, size] log of a resample's median over the size's; no rows without repeats.

    A few repeats of one size show little of their spread: relative deviations are pooled over the
    sizes, each as much larger as a mean of k values hides, sqrt(k / (k - 1)).
    """
    logs = [np.log(np.array(repeats, float)) for repeats in speeds if len(repeats) > 1]
    if not logs:
        return np.empty((0, len(speeds)))
    pooled = np.concatenate([(x - x.mean()) * sqrt(len(x) / (len(x) - 1)) for x in logs])
    random = np.random.default_rng(SEED)
    columns = [
        np.median(random.choice(pooled, (RESAMPLES, len(repeats))), axis=1) for repeats in speeds
    ]
    return np.stack(columns, axis=1)
