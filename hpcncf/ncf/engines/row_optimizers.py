"""Optimizers of engine rowwise: of the rows that a step reads, and of the dense layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hpcncf.job.spec import Training
from hpcncf.ncf.model import NeuMF
from hpcncf.remedies.idle_rows import (
    BETA1,
    BETA2,
    EPS,
    MAX_SINGLE_STEP,
    IdleAdam,
    bias_corrections,
    catch_up_stepwise,
)
from hpcncf.remedies.row_table import write_rows


class StepCounter:
    """Counts the steps of an engine, and corrects Adam's bias for them."""

    def __init__(self, lr: float) -> None:
        self.lr, self.step = lr, 0

    def advance(self) -> None:
        """Increment the number of the current step."""
        self.step += 1

    def bias_corrections(self) -> tuple[float, float]:
        """Step size and eps of Adam in the current step, corrected for bias.

        These are lr * a_t and e_t of `idle_rows.bias_corrections`.
        """
        size, eps = bias_corrections(self.step)
        return self.lr * size, eps

    def resume_after(self, step: int) -> None:
        """Set the number of the last step that was taken."""
        self.step = step


# A row's values and its moments are contiguous: reading it costs one cache miss, not three.

ROWS_SETTLED_AT_ONCE = 2**12
"""As many as a core's cache holds."""


class SgdRows:
    """Gradient descent: a row without a gradient does not move.

    A step calls `read`, then, once the step counter has advanced, `update` of the same rows.
    """

    values: Tensor
    """[rows, width], a view of the table, current after each step."""

    def __init__(self, start: Tensor, counter: StepCounter) -> None:
        self.values, self._counter = start.clone(), counter

    def read(self, ids: Tensor) -> Tensor:
        """Read the rows of distinct ids [len(ids), width] as they are before the next step."""
        self._ids = ids
        return self.values.index_select(0, ids)

    def update(self, gradient: Tensor) -> None:
        """Take the step for the rows read last; `gradient` is [len(ids), width]."""
        self.values.index_add_(0, self._ids, gradient, alpha=-self._counter.lr)

    def settle(self) -> None:
        """Bring every row up to the last step."""

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        assert not state


class LazyAdamRows:
    """SparseAdam's rule: rows without a gradient do not move, and eps is not bias-corrected."""

    def __init__(self, start: Tensor, counter: StepCounter) -> None:
        rows, width = start.shape
        self._table = torch.zeros(rows, 3, width, dtype=start.dtype)
        self._flat = self._table.view(rows, 3 * width)
        self._table[:, 0] = start
        self.values = self._table[:, 0]
        self._counter = counter

    def read(self, ids: Tensor) -> Tensor:
        self._take(ids)
        return self._read[0]

    def update(self, gradient: Tensor) -> None:
        size, _ = self._counter.bias_corrections()
        adam_update(self._read, gradient, size, EPS)
        self._put_back()

    def settle(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {"step": self._counter.step, "moments": self._table[:, 1:]}

    def load(self, state: dict[str, Any]) -> None:
        self._counter.resume_after(state["step"])
        self._table[:, 1:] = state["moments"]

    def _take(self, ids: Tensor) -> None:
        # Interleaved in the table, separate here: arithmetic on strided rows would be slow.
        self._ids = ids
        rows = self._flat.index_select(0, ids)
        self._read = rows.view(len(ids), *self._table.shape[1:]).transpose(0, 1).contiguous()

    def _put_back(self) -> None:
        write_rows(self._flat, self._ids, torch.cat(self._read.unbind(), dim=1))


class AdamRows(LazyAdamRows):
    """Adam for every row: an idle row is caught up when it is next read."""

    def __init__(self, start: Tensor, counter: StepCounter) -> None:
        super().__init__(start, counter)
        self._last = torch.zeros(len(start), dtype=torch.int64)
        self._idle = IdleAdam()

    def read(self, ids: Tensor) -> Tensor:
        self._take(ids)
        self._catch_up()
        return self._read[0]

    def update(self, gradient: Tensor) -> None:
        adam_update(self._read, gradient, *self._counter.bias_corrections())
        self._put_back()
        self._last.index_fill_(0, self._ids, self._counter.step)
        if self._counter.step == MAX_SINGLE_STEP:
            self.settle()

    def settle(self) -> None:
        behind = (self._last < self._counter.step).nonzero().squeeze(1)
        for ids in torch.split(behind, ROWS_SETTLED_AT_ONCE):
            self._take(ids)
            self._catch_up()
            self._put_back()
        self._last.fill_(self._counter.step)

    def _catch_up(self) -> None:
        last, now = self._last.index_select(0, self._ids), self._counter.step
        if now <= MAX_SINGLE_STEP:
            catch_up_stepwise(self._read, last, now, self._counter.lr)
        else:
            self._idle.catch_up(self._read, last, now, self._counter.lr)

    def state(self) -> dict[str, Any]:
        return super().state() | {"last": self._last}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._last.copy_(state["last"])


def adam_update(parts: Tensor, gradient: Tensor, size: float, eps: float) -> None:
    """Take Adam's step in place on `parts` [3, ...]: values, first and second moments."""
    values, first, second = parts
    first.lerp_(gradient, 1 - BETA1)
    second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    values.addcdiv_(first, second.sqrt().add_(eps), value=-size)


class DenseLayers:
    """Adam or gradient descent for the dense layers, which get a gradient in every step."""

    def __init__(self, model: NeuMF, training: Training, counter: StepCounter) -> None:
        parameters = [each for part in model.layers() for each in part.parameters()]
        values = torch.cat([each.detach().reshape(-1) for each in parameters])
        # Values and both moments [3, n].
        self.parts = torch.stack([values, torch.zeros_like(values), torch.zeros_like(values)])
        self.gradient = torch.zeros_like(values)
        self._counter, self._descends = counter, training.optimizer == "sgd"
        sizes = [each.numel() for each in parameters]
        views = (torch.split(whole, sizes) for whole in (self.parts[0], self.gradient))
        for each, mine, gradient in zip(parameters, *views, strict=True):
            # backward() adds to an existing gradient in place.
            each.data, each.grad = mine.view_as(each), gradient.view_as(each)

    def update(self) -> None:
        """Take the step with the accumulated gradient, then reset the gradient to zero."""
        if self._descends:
            self.parts[0].sub_(self.gradient, alpha=self._counter.lr)
        else:
            adam_update(self.parts, self.gradient, *self._counter.bias_corrections())
        self.gradient.zero_()

    def state(self) -> dict[str, Tensor | int]:
        return {"step": self._counter.step, "moments": self.parts[1:]}

    def load(self, state: dict[str, Any]) -> None:
        self._counter.resume_after(state["step"])
        self.parts[1:] = state["moments"]


OptimizedTable = SgdRows | LazyAdamRows
ROW_OPTIMIZERS: dict[str, Callable[[Tensor, StepCounter], OptimizedTable]] = {
    "adam": AdamRows,
    "lazy_adam": LazyAdamRows,
    "sgd": SgdRows,
}
