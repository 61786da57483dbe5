"""Optimizers of engine rowwise: of the rows that a step reads, and of the dense layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
    STEADY_FROM_STEP,
    IdleAdam,
    bias_corrections,
    catch_up_stepwise,
)
from hpcncf.remedies.row_table import write_rows

Rate = float | Tensor


class StepCounter:
    """Counts the steps of an engine, on the host and, if asked, on the device.

    A step that is compiled or captured as a graph must not read a count on the host: the graph
    would repeat that value forever. It reads tensors that the device advances. The host counts as
    well, so that the device is never asked."""

    def __init__(self, lr: float, of_device: Tensor | None = None) -> None:
        """`of_device`: a tensor with the parameters' type and device, if the device counts too."""
        self.lr, self.step = lr, 0
        self.on_device = False
        """Whether `current` and `bias_corrections` are the device's."""
        self._now_is = 0
        if of_device is not None:
            self._now = torch.zeros(1, dtype=torch.int64, device=of_device.device)
            each = (bias_corrections(step) for step in range(1, STEADY_FROM_STEP + 1))
            table = [(0.0, 0.0), *((lr * size, eps) for size, eps in each)]  # [step, 2]
            self._table = torch.tensor(table, dtype=torch.float64).to(of_device)

    @property
    def current(self) -> int | Tensor:
        """Steps so far; the device's count has shape [1]."""
        return self._now if self.on_device else self.step

    def advance(self) -> None:
        """Begin the next step."""
        if self.on_device:
            self._now.add_(1)
        else:
            self.step += 1

    def bias_corrections(self) -> tuple[Rate, Rate]:
        """lr * a_t and e_t (`idle_rows.bias_corrections`) of the current step; shape [1] on a
        device.

        From step `STEADY_FROM_STEP` on the device uses that step's values: 1e-9 off at most.
        """
        if not self.on_device:
            size, eps = bias_corrections(self.step)
            return self.lr * size, eps
        size_, eps_ = self._table.index_select(0, self._now.clamp(max=STEADY_FROM_STEP)).unbind(1)
        return size_, eps_

    def resume_after(self, step: int) -> None:
        """Continue after this step."""
        self.step = step

    @contextmanager
    def counted_on_device(self) -> Iterator[None]:
        """Runs or captures one step that reads the device's count."""
        self.on_device = True
        try:
            yield
        finally:
            self.on_device = False

    def advance_device(self) -> None:
        """Call before a step that reads the device's count. Copies the host's count to the device,
        without a wait, if the host took the last step."""
        if self._now_is != self.step:
            self._now.fill_(self.step)
        self.step += 1
        self._now_is = self.step


# A row's values and its moments are contiguous: reading it costs one cache miss, not three. Behind
# the last row of a table is one of zeros, which a step may read any number of times: it gets no
# gradient and never changes.

# Rows settled at once: a CPU's cache holds these; a GPU would spend its time on starting kernels.
ON_CPU, ON_GPU = 2**12, 2**17


class SgdRows:
    """Gradient descent: a row without a gradient does not move.

    A step calls `read`, then, once the step counter has advanced, `update` of the same rows.
    """

    values: Tensor
    """[rows, width], a view of the table, current after each step."""

    def __init__(self, start: Tensor, counter: StepCounter) -> None:
        self._table = torch.cat([start, torch.zeros_like(start[:1])])
        self.values, self._counter = self._table[:-1], counter

    def read(self, ids: Tensor) -> Tensor:
        """Rows [len(ids), width] before the coming step. Ids are distinct, except for len(values):
        the row of zeros, which gets no gradient."""
        self._ids = ids
        return self._table.index_select(0, ids)

    def update(self, gradient: Tensor) -> None:
        """Take the step with the gradient [len(ids), width] of the rows read last."""
        self._table.index_add_(0, self._ids, gradient, alpha=-self._counter.lr)

    def read_state(self, ids: Tensor) -> Tensor:
        """All numbers that a step changes in these rows, current: [parts, len(ids), width]."""
        return self.values.index_select(0, ids)[None]

    def write_state(self, ids: Tensor, whole: Tensor) -> None:
        """Continue from such rows; ids are distinct."""
        write_rows(self.values, ids, whole[0])

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
        whole = torch.zeros(rows + 1, 3, width, dtype=start.dtype, device=start.device)
        self._flat, self._table = whole.view(rows + 1, 3 * width), whole[:-1]
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

    def read_state(self, ids: Tensor) -> Tensor:
        self.read(ids)
        return self._read

    def write_state(self, ids: Tensor, whole: Tensor) -> None:
        self._ids, self._read = ids, whole
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
        self._steps = torch.zeros(len(start) + 1, dtype=torch.int64, device=start.device)
        self._last = self._steps[:-1]
        self._idle = IdleAdam(start.device)

    def read(self, ids: Tensor) -> Tensor:
        self._take(ids)
        self._catch_up()
        return self._read[0]

    def update(self, gradient: Tensor) -> None:
        adam_update(self._read, gradient, *self._counter.bias_corrections())
        self._put_back()
        taken = self._counter.current
        if isinstance(taken, Tensor):  # index_fill_ would ask for its value
            self._steps.index_copy_(0, self._ids, taken.expand(len(self._ids)))
            return
        self._steps.index_fill_(0, self._ids, taken)
        if taken == MAX_SINGLE_STEP:
            self.settle()

    def write_state(self, ids: Tensor, whole: Tensor) -> None:
        super().write_state(ids, whole)
        self._last.index_fill_(0, ids, self._counter.step)

    def settle(self) -> None:
        for ids in self._behind():
            self._take(ids)
            self._catch_up()
            self._put_back()
        self._last.fill_(self._counter.step)

    def _behind(self) -> Iterable[Tensor]:
        """Ids of the rows to catch up. A GPU catches up all rows, which does not change current
        ones: the host would have to wait to learn which are behind."""
        if self._last.device.type == "cpu":
            behind = (self._last < self._counter.step).nonzero().squeeze(1)
            return torch.split(behind, ON_CPU)
        return torch.split(torch.arange(len(self._last), device=self._last.device), ON_GPU)

    def _catch_up(self) -> None:
        last, now = self._steps.index_select(0, self._ids), self._counter.current
        if isinstance(now, int) and now <= MAX_SINGLE_STEP:
            catch_up_stepwise(self._read, last, now, self._counter.lr)
        else:
            self._idle.catch_up(self._read, last, now, self._counter.lr)

    def state(self) -> dict[str, Any]:
        return super().state() | {"last": self._last}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._last.copy_(state["last"])


def adam_update(parts: Tensor, gradient: Tensor, size: Rate, eps: Rate) -> None:
    """Take Adam's step in place on values, m and v [3, ...]."""
    values, first, second = parts
    first.lerp_(gradient, 1 - BETA1)
    second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    root = second.sqrt().add_(eps)
    # Bitwise equal on CPUs only, where torch multiplies by `value` before it divides; on a GPU it
    # divides first.
    if isinstance(size, Tensor):
        values.addcdiv_(first * -size, root)
    else:
        values.addcdiv_(first, root, value=-size)


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
        """Take the step with the accumulated gradient, and reset it."""
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


RowTable = SgdRows | LazyAdamRows
ROW_OPTIMIZERS: dict[str, Callable[[Tensor, StepCounter], RowTable]] = {
    "adam": AdamRows,
    "lazy_adam": LazyAdamRows,
    "sgd": SgdRows,
}
