"""Adam for rows without a gradient, in closed form (docs/engines.md)."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

# torch.optim.Adam moves every row in every step. With a_t = sqrt(1 - b2^t) / (1 - b1^t) and
# e_t = eps sqrt(1 - b2^t), step t is p -= lr a_t m / (sqrt(v) + e_t). A row whose last gradient
# came in step s moves in the K steps after it by -lr m F(sqrt(v)), where
#
#     F(x) = sum over k = 1..K of w_k / (x + z_k),
#     w_k = a_(s+k) (b1 / sqrt(b2))^k,  z_k = e_(s+k) b2^(-k/2),
#
# while m shrinks by b1^K and v by b2^K. F is the Stieltjes transform of the measure that has the
# weight w_k at z_k. Its two-point Gauss quadrature has the same moments M_j = sum of w_k z_k^j,
# j = 0..3, and those are differences of one table over s (Golub and Meurant 2010, "Matrices,
# Moments and Quadrature with Applications"). From step 10 on F is off by 0.31 % at most, from step
# 100 by 1e-5; a row last stepped before step 10 takes its idle steps up to 10 one by one.

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # torch's defaults
MAX_SINGLE_STEP = 10
"""Idle steps up to this one are taken singly: in the first few, z_k spreads too far."""
STEADY_FROM_STEP = 20_000
"""From this step on the bias corrections are 1, to 1e-9."""
MAX_IDLE_STEPS = 1_000
"""Idle steps after which m has shrunk by 1e-45, and with it all that its start weighs."""
MIN_RELATIVE_VARIANCE = 1e-6
"""Of the square of the mean z: a variance below it is one node's."""
MIN_SHRINKAGE = 1e-24
"""Shrunk further, a moment is 0: it is nothing beside the next gradient, and numbers that float32
has no exponent for are slow."""


def bias_corrections(step: int) -> tuple[float, float]:
    """Return Adam's bias corrections of a step: a_t of the step size, e_t of epsilon.

    The update is p -= lr a_t m / (sqrt(v) + e_t).
    """
    correction = math.sqrt(1 - BETA2**step)
    return correction / (1 - BETA1**step), EPS * correction


def moment_ratios() -> Tensor:
    """Return the four ratios q_j of consecutive terms of the moments M_j, float64 [4].

    q_j = b1 / b2^((1 + j) / 2).
    """
    return BETA1 / BETA2 ** ((1 + torch.arange(4, dtype=torch.float64)) / 2)


@cache
def tail_moments() -> Tensor:
    """Return the moments M_0..M_3 of rows idle forever, [STEADY_FROM_STEP + 1, 4].

    Row s is for a row that is idle after step s; z is in units of eps.
    """
    found = []
    for j, ratio in enumerate(moment_ratios().tolist()):
        size, eps = bias_corrections(STEADY_FROM_STEP + 1)
        tail = ratio / (1 - ratio) * size * (eps / EPS) ** j
        column = [tail]
        for step in range(STEADY_FROM_STEP, 0, -1):
            size, eps = bias_corrections(step)
            tail = ratio * (size * (eps / EPS) ** j + tail)
            column.append(tail)
        found.append(column[::-1])
    return torch.tensor(found, dtype=torch.float64).T.contiguous()


class IdleAdam:
    """Moves idle rows to the present step.

    Its tables depend neither on the data nor on the learning rate.
    """

    def __init__(self) -> None:
        self._tails = tail_moments()
        idle = torch.arange(MAX_IDLE_STEPS + 1, dtype=torch.float64)[:, None]
        shrunk = torch.cat([moment_ratios(), torch.tensor([BETA1])]) ** idle
        self._shrunk = shrunk.masked_fill_(shrunk < MIN_SHRINKAGE, 0.0)

    def catch_up(self, rows: Tensor, last: Tensor, now: int, lr: float) -> None:
        """Move rows [3, n, width] (values, m, v) in place from step `last` [n] to step `now`.

        No row's last step may be below MAX_SINGLE_STEP, unless its m is 0.
        """
        values, first, second = rows
        idle = now - last
        shrunk = self._shrunk.index_select(0, idle.clamp(max=MAX_IDLE_STEPS))
        start = self._tails.index_select(0, last.clamp(max=STEADY_FROM_STEP))
        moments = start - shrunk[:, :4] * self._tails[min(now, STEADY_FROM_STEP)]
        a, b, p, q = (each.to(rows.dtype)[:, None] for each in quadrature(moments))
        root = second.sqrt()
        moved = torch.addcmul(b, root, a).div_(torch.addcmul(q, root, root + p))
        values.addcmul_(first, moved, value=-lr)
        first.mul_(shrunk[:, 4:].to(rows.dtype))
        fading = torch.exp(idle.double() * math.log(BETA2))
        second.mul_(fading.masked_fill_(fading < MIN_SHRINKAGE, 0.0).to(rows.dtype)[:, None])


def quadrature(moments: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fit F(x) = (a x + b) / (x^2 + p x + q) to moments M_0..M_3 [n, 4]: a, b, p, q [n].

    z is in units of eps.

    The denominator is the orthogonal polynomial whose roots are the quadrature's nodes, negated.
    """
    m0, m1, m2, m3 = moments.unbind(1)
    spread = m0 * m2 - m1 * m1
    # One idle step, or many at about the same z, are one node: then the two equations are one.
    one_node = spread <= MIN_RELATIVE_VARIANCE * m1 * m1
    mean = m1 / m0
    p = torch.where(one_node, 2 * mean, (m0 * m3 - m1 * m2) / spread)
    q = torch.where(one_node, mean * mean, (m1 * m3 - m2 * m2) / spread)
    awake = m0 <= 0  # not idle for a single step: F is 0
    return (
        m0,
        (EPS * (p * m0 - m1)).masked_fill_(awake, 0.0),
        (EPS * p).masked_fill_(awake, EPS),
        (EPS**2 * q).masked_fill_(awake, EPS**2),
    )


def catch_up_stepwise(rows: Tensor, last: Tensor, now: int, lr: float) -> None:
    """Move rows to step `now`, as `IdleAdam.catch_up`, but step by step and exactly.

    It is meant for the first steps of a training.
    """
    values, first, second = rows
    for step in range(1, now + 1):
        idle = (last < step)[:, None]
        size, eps = bias_corrections(step)
        first.mul_(torch.where(idle, BETA1, 1.0).to(rows.dtype))
        second.mul_(torch.where(idle, BETA2, 1.0).to(rows.dtype))
        moved = first / second.sqrt().add_(eps)
        values.sub_(torch.where(idle, moved, 0.0), alpha=lr * size)
