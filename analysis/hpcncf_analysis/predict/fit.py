"""Non-negative least squares, and whether what was measured determines what is asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Any, Final

import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Chosen = np.ndarray[Any, np.dtype[np.bool_]]

# Repeats differ by that: a law that comes nearer, as one with a term a point does, is no likelier.
NOISE: Final = 0.05
# Of a vector's length: what lies outside of the measured ones' span by less is rounding.
ROUNDING: Final = 1e-6


@dataclass(frozen=True)
class Fit:
    """Seconds as a sum of features, each times a coefficient of 0 or more."""

    law: str
    coefficients: Matrix
    """[feature]"""
    span: Matrix
    """[direction, feature]: an orthonormal basis of the features measured."""

    def at(self, features: Sequence[float]) -> float:
        return float(np.dot(self.coefficients, np.asarray(features, dtype=float)))

    def knows(self, features: Sequence[float]) -> bool:
        """Whether every coefficient that fits as well would say the same here."""
        asked = np.asarray(features, dtype=float)
        outside = asked - self.span.T @ (self.span @ asked)
        return float(np.linalg.norm(outside)) <= ROUNDING * max(float(np.linalg.norm(asked)), 1.0)


def fitted(
    law: str, features: Sequence[Sequence[float]], seconds: Sequence[float], scale: Sequence[float]
) -> tuple[Fit, float]:
    """The fit with the least sum of squares of (error / scale), and its AIC.

    Of two laws the one with the lower AIC is the likelier to tell what was not measured (Akaike
    1974); here no error counts for less than `NOISE`.
    """
    weights = 1 / np.asarray(scale, dtype=float)
    matrix = np.asarray(features, dtype=float)
    scaled, wanted = matrix * weights[:, None], np.asarray(seconds, dtype=float) * weights
    coefficients = non_negative(scaled, wanted)
    error = float(np.mean((scaled @ coefficients - wanted) ** 2))
    span = _span(matrix)
    unlikely = len(wanted) * log(max(error, NOISE**2)) + 2 * len(span)
    return Fit(law, coefficients, span), unlikely


def _span(matrix: Matrix) -> Matrix:
    _, sizes, directions = np.linalg.svd(matrix, full_matrices=False)
    kept: Matrix = directions[sizes > ROUNDING * sizes.max(initial=1.0)]
    return kept


def non_negative(matrix: Matrix, wanted: Matrix) -> Matrix:
    """The x >= 0 that minimises |matrix x - wanted|: Lawson and Hanson 1974, algorithm NNLS.

    matrix: [point, feature]; wanted: [point].
    """
    features = matrix.shape[1]
    inside = np.zeros(features, dtype=bool)
    found = np.zeros(features)
    tolerance = 1e-12 * float(np.abs(matrix.T @ wanted).max(initial=1.0))
    for _ in range(3 * features):
        gradient = matrix.T @ (wanted - matrix @ found)
        gradient[inside] = -inf
        if gradient.max(initial=-inf) <= tolerance:
            break
        inside[int(gradient.argmax())] = True
        found = _feasible(matrix, wanted, inside, found)
    return found


def _feasible(matrix: Matrix, wanted: Matrix, inside: Chosen, found: Matrix) -> Matrix:
    """Least squares over the features `inside`; those that turn negative leave it, in place."""
    while True:
        best = np.zeros_like(found)
        best[inside] = np.linalg.lstsq(matrix[:, inside], wanted, rcond=None)[0]
        negative = inside & (best <= 0)
        if not negative.any():
            return best
        steps = found[negative] / (found[negative] - best[negative])
        found = found + float(steps.min(initial=1.0)) * (best - found)
        inside &= found > 0
        found[~inside] = 0.0
