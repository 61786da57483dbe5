"""The coefficients of N / X(N) that are nearest to what was measured, none negative. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# N / X(N) = a + b (N - 1) + c N (N - 1), with 1 / a = lambda, b / a = sigma, c / a = kappa. Where
# a bound holds (b = 0, c = 0, or b = a, for sigma is at most 1), the rest is free: a row for each
# that is free, in terms of (a, b, c).
AMDAHL: Final = ([[1, 0, 0], [0, 1, 0]], [[1, 0, 0]], [[1, 1, 0]])
USL: Final = (
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    [[1, 0, 0], [0, 0, 1]],
    [[1, 1, 0], [0, 0, 1]],
    *AMDAHL,
)


def nearest(sizes: Floats, targets: Floats, weights: Floats, crosstalk: bool) -> Floats:
    """[case, 3] a, b and c of each case: the least sum of ((N / X(N) - target) / weight)^2.

    `targets`: [case, size], all above 0. The least under bounds is the least of the free problem
    on one of the bounds' faces (a convex problem): all of them are solved, the best that keeps
    the bounds is taken.
    """
    terms = np.stack([np.ones_like(sizes), sizes - 1, sizes * (sizes - 1)], axis=1)
    wanted = targets / weights
    best = np.full(len(targets), np.inf)
    found = np.zeros((len(targets), 3))
    for face in map(np.array, USL if crosstalk else AMDAHL):
        design = terms @ face.T / weights[:, None]
        free = wanted @ np.linalg.pinv(design).T
        error = ((free @ design.T - wanted) ** 2).sum(axis=1)
        candidates = free @ face
        better = _allowed(candidates) & (error < best)
        found[better], best[better] = candidates[better], error[better]
    return found


def _allowed(candidates: Floats) -> npt.NDArray[np.bool_]:
    a, b, c = candidates.T
    allowed: npt.NDArray[np.bool_] = (a > 0) & (b >= 0) & (b <= a) & (c >= 0)
    return allowed
