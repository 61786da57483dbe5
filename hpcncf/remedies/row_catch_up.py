"""What a row without a gradient missed, in closed form, so that it catches up in one move.

A row without a gradient keeps moving: its moments shrink, and they or weight decay move its values.
After K steps, whatever the rates of each, a row that was last current at step s has

    values  ->  D values - m F(sqrt(v)),    m  ->  B1 m,    v  ->  B2 v,

where D, B1 and B2 are products over the K steps, of 1 - lr * weight_decay, beta1 and beta2. With
a_t = lr_t / (1 - beta1^t) sqrt(1 - beta2^t) and e_t = eps sqrt(1 - beta2^t), Adam has

    F(x) = sum over k = 1..K of w_k / (x + z_k),
    w_k = a_(s+k) B1_k / sqrt(B2_k) D / D_k,    z_k = e_(s+k) / sqrt(B2_k),

with B1_k, B2_k and D_k the products over the first k of them. The z_k lie close together. With c in
their middle F is sum over j of (-1)^j M_j / (x + c)^(j+1), where M_j = sum of w_k (z_k - c)^j. If
sqrt(v) is near eps and the training is young, that series converges slowly: such rows take the sum
itself. The bound on the terms left out decides, value by value.

Momentum has F = M_0, whatever v is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

LOG_FIRST, LOG_SECOND, LOG_KEPT, CENTRE, SIZE, EPS, COLUMNS = range(7)
CENTRAL_STEPS = 10
"""Of a row's idle steps, the one whose z is the centre: their weights shrink by beta1 a step."""
MOST_STEPS = 2**16
"""Remembered; then every row is brought up to date, and memory begins anew."""
MIN_LOG_KEPT = -50.0
"""Weights are divided by the product of all decay since memory began: it must not vanish."""
MIN_SHRINKAGE = {torch.float32: 1e-24, torch.float64: 1e-200}
"""Shrunk further, a moment is 0: it is nothing beside the next gradient, and numbers that float32
has no exponent for are slow."""
TOLERANCE = {torch.float32: 1e-8, torch.float64: 1e-15}
"""Weight, beside that of the first, of idle steps so far ahead that they are left out."""
TERMS = {torch.float32: (4, 8), torch.float64: (8, 12)}
"""Of the series: as many as suffice for rows of an old training, and of a young one. Even numbers;
the next term is the bound of those left out. The compiled loops have 4, 8 and 12."""
LEFT_OUT = {torch.float32: 1e-6, torch.float64: 1e-13}
"""The most that those may be, of a row's movement."""
LOG_OF_ZERO = -800.0
VALUES_SUMMED = 2048
"""At once, term by term."""


class IdleSteps:
    """Records of the steps that a row may have missed.

    The record of step s describes all steps after it.

    Records lie in host memory, float64; a device gets the part that changed. Steps are counted from
    the last `restart`.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, series: bool, moves: bool) -> None:
        """Begin without steps. `series`: F depends on v; `moves`: the first moment moves values."""
        self.dtype, self._device = dtype, device
        self.terms = TERMS[dtype][-1] if series else 0
        self._moments = self.terms + 1 if moves else 0
        self.tolerance = TOLERANCE[dtype]
        self._records = np.zeros((256, COLUMNS + self._moments))
        self._on_device: Tensor | None = None
        self.restart()

    def restart(self) -> None:
        """Forget all steps; afterwards no row is outdated."""
        self.now = 0
        self._oldest = self._changed = 0
        self.window = 1
        self.log_first = self.log_second = 0.0
        self._records[:1] = 0.0
        self._records[0, CENTRE] = 1.0
        self._fixed = False

    @property
    def is_full(self) -> bool:
        return self.now >= MOST_STEPS or self._records[self.now, LOG_KEPT] < MIN_LOG_KEPT

    def advance(
        self,
        size: float,
        first: float,
        second: float = 1.0,
        kept: float = 1.0,
        eps: float = 0.0,
        centre: float = 1.0,
    ) -> None:
        """Record a step: size, beta1, beta2, weight decay factor, epsilon and series centre."""
        before, self.now = self.now, self.now + 1
        if self.now == len(self._records):
            self._records = np.concatenate([self._records, np.zeros_like(self._records)])
            self._on_device = None
        logs = tuple(math.log(each) if each > 0 else LOG_OF_ZERO for each in (first, second))
        if not self._fixed:  # ratios of constant rates are then exact
            (self.log_first, self.log_second), self._fixed = logs, True
        new = self._records[self.now]
        new[:] = 0.0
        new[LOG_FIRST] = self._records[before, LOG_FIRST] + (logs[0] - self.log_first)
        new[LOG_SECOND] = self._records[before, LOG_SECOND] + (logs[1] - self.log_second)
        new[LOG_KEPT] = self._records[before, LOG_KEPT] + math.log(kept)
        new[SIZE], new[EPS] = size, eps
        new[CENTRE] = centre
        if self._moments:
            self._add_to_moments(size * math.exp(-new[LOG_KEPT]), eps)

    def _add_to_moments(self, size: float, eps: float) -> None:
        old, new = self._records[self._oldest : self.now], self._records[self.now]
        idle = np.arange(len(old), 0, -1.0)
        log_first = idle * self.log_first + (new[LOG_FIRST] - old[:, LOG_FIRST])
        if not self.terms:
            old[:, COLUMNS] += size * np.exp(log_first)
        else:
            log_root = 0.5 * (idle * self.log_second + (new[LOG_SECOND] - old[:, LOG_SECOND]))
            term = size * np.exp(log_first - log_root)
            # z and c in units of c
            away = eps * np.exp(-log_root) / old[:, CENTRE] - 1.0
            for column in range(COLUMNS, COLUMNS + self._moments):
                old[:, column] += term
                term *= away
        self._changed = min(self._changed, self._oldest)
        fades = np.log(self.tolerance) + self.log_first
        while self._oldest < self.now and log_first[0] < fades:
            self._oldest += 1
            log_first = log_first[1:]
        self.window = max(self.window, self.now - self._oldest)

    def describe_to(self, history: Any) -> None:
        """Fill the C structure from which the compiled loops read the steps' records."""
        history.records = self._records.ctypes.data
        history.columns = self._records.shape[1]
        history.now, history.window = self.now, self.window
        history.terms[:] = TERMS[self.dtype]
        history.log_first, history.log_second = self.log_first, self.log_second
        history.left_out, history.min_shrinkage = LEFT_OUT[self.dtype], MIN_SHRINKAGE[self.dtype]

    def records(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the records of all steps, one row per step, in host memory."""
        return self._records[: self.now + 1]

    def latest(self) -> Tensor:
        """Return the record of the present step, in host memory."""
        return torch.from_numpy(self._records[self.now].copy())

    def table(self) -> Tensor:
        if self._device.type == "cpu":
            return torch.from_numpy(self._records)
        if self._on_device is None:
            self._on_device = torch.from_numpy(self._records).to(self._device)
        elif self._changed <= self.now:
            part = slice(self._changed, self.now + 1)
            self._on_device[part] = torch.from_numpy(self._records[part]).to(self._device)
        self._changed = self.now + 1
        return self._on_device


class Missed:
    """Steps missed by n rows that were last current at `last` [n]; factors have shape [n, 1]."""

    def __init__(self, steps: IdleSteps, last: Tensor) -> None:
        self._steps, self._last, self._dtype = steps, last, steps.dtype
        self._records = steps.table().index_select(0, last)
        now = steps.latest()
        self._all_kept = math.exp(float(now[LOG_KEPT]))
        change = now[:COLUMNS].to(last.device) - self._records[:, :COLUMNS]
        idle = (steps.now - last).double()
        self.first = self._factor(idle * steps.log_first + change[:, LOG_FIRST])
        self.second = self._factor(idle * steps.log_second + change[:, LOG_SECOND])
        self.kept = self._column(change[:, LOG_KEPT].exp())

    def _column(self, values: Tensor) -> Tensor:
        return values.to(self._dtype)[:, None]

    def _factor(self, logarithm: Tensor) -> Tensor:
        factor = logarithm.exp()
        return self._column(factor.masked_fill_(factor < MIN_SHRINKAGE[self._dtype], 0.0))

    def shift(self) -> Tensor:
        """Return the factor F [n, 1] of SGD with momentum, for the steps that the rows missed."""
        return self._column(self._records[:, COLUMNS] * self._all_kept)

    def slope(self, root: Tensor, first: Tensor) -> Tensor:
        """Return Adam's factor F [n, width] at `root` = sqrt(v), for the steps the rows missed.

        `first` is the rows' first moment, and n > 0.
        """
        for terms in TERMS[self._dtype]:
            reach = self._reach(terms)
            converges = float(reach.max()) <= 0
            if converges:
                break
        centre = self._records[:, CENTRE]
        moments = self._records[:, COLUMNS : COLUMNS + terms]
        scaled = self._all_kept * moments / centre[:, None]
        scaled, c = scaled.to(self._dtype), self._column(centre)
        near = c / (root + c)
        total = scaled[:, terms - 1 : terms].expand_as(near)
        for j in range(terms - 2, -1, -1):
            total = torch.addcmul(scaled[:, j : j + 1], near, total, value=-1)
        total = total.mul_(near)
        if not converges:
            slow = (root < self._column(reach)).logical_and_(first != 0).nonzero()
            for at, column in (each.unbind(1) for each in torch.split(slow, VALUES_SUMMED)):
                if len(at):
                    total[at, column] = self._sum_terms(at, root[at, column])
        return total

    def _reach(self, terms: int) -> Tensor:
        """Return the smallest sqrt(v) [n], float64, for which `terms` terms suffice."""
        whole, after = (self._records[:, COLUMNS + each] for each in (0, terms))
        ratio = (after / (whole * LEFT_OUT[self._dtype])).clamp_(min=0.0).pow_(1 / terms)
        return torch.where(whole > 0, (ratio - 1) * self._records[:, CENTRE], -1.0)

    def _sum_terms(self, at: Tensor, root: Tensor) -> Tensor:
        """Compute Adam's factor F term by term, at `root` [n] of the rows `at` [n]."""
        steps, (at, row) = self._steps, torch.unique(at, return_inverse=True)
        last, table = self._last.index_select(0, at), steps.table()
        most = min(steps.window, steps.now - int(last.min()))
        reached = last + torch.arange(1, most + 1, device=root.device)[:, None]  # [k, rows]
        there = table.index_select(0, reached.clamp(max=steps.now).reshape(-1))
        there = there[:, :COLUMNS].view(most, len(at), COLUMNS)
        start, end = table.index_select(0, last), table[steps.now]
        idle = (reached - last).double()
        log_first = idle * steps.log_first + (there[..., LOG_FIRST] - start[:, LOG_FIRST])
        log_root = idle * steps.log_second + (there[..., LOG_SECOND] - start[:, LOG_SECOND])
        log_root *= 0.5
        later = end[LOG_KEPT] - there[..., LOG_KEPT]
        weights = there[..., SIZE] * (log_first - log_root + later).exp()
        weights = weights.masked_fill_(reached > steps.now, 0.0).to(root.dtype)
        places = (there[..., EPS] * (-log_root).exp()).to(root.dtype)
        terms = weights.index_select(1, row) / (root + places.index_select(1, row))
        return terms.sum(dim=0)
