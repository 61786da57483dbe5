"""Optimizers of engine rowwise: of the rows that a step reads, and of the dense layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from hpcncf.job.spec import Training
from hpcncf.ncf.engines.idle_rows import (
    BETA1,
    BETA2,
    EPS,
    MAX_SINGLE_STEP,
    STEADY_FROM_STEP,
    IdleAdam,
    bias_corrections,
    catch_up_stepwise,
)
from hpcncf.ncf.model import NeuMF

Rate = float | Tensor


class StepCounter:
    """Of the rows and the layers that one engine moves together."""

    def __init__(self, lr: float, of_device: Tensor | None = None) -> None:
        """`of_device`: where the device is to count, too, a tensor of the type and on the device of
        what is moved."""
        self.lr, self.step = lr, 0
        self.on_device = False
        """Whether `taken` and `rates` are the device's."""
        self._now_is = 0
        if of_device is not None:
            self._now = torch.zeros(1, dtype=torch.int64, device=of_device.device)
            self._table = _rates(lr).to(of_device)

    @property
    def current(self) -> int | Tensor:
        """Steps so far; of the device [1]."""
        return self._now if self.on_device else self.step

    def advance(self) -> None:
        """The next step is being taken."""
        if self.on_device:
            self._now.add_(1)
        else:
            self.step += 1

    def bias_corrections(self) -> tuple[Rate, Rate]:
        """lr * a_t and e_t (`idle.rates`) of the step that is being taken; of the device [1] each.

        The device's are those of step `idle.SETTLED` from there on, which differ by 1e-9 at most.
        """
        if not self.on_device:
            size, eps = bias_corrections(self.step)
            return self.lr * size, eps
        size_, eps_ = self._table.index_select(0, self._now.clamp(max=STEADY_FROM_STEP)).unbind(1)
        return size_, eps_

    def resume_after(self, step: int) -> None:
        """Go on from after this step."""
        self.step = step

    @contextmanager
    def counted_on_device(self) -> Iterator[None]:
        """What is done in it is one step, or captures one, by the device's count."""
        self.on_device = True
        try:
            yield
        finally:
            self.on_device = False

    def advance_device(self) -> None:
        """Before a step by the device's count: where the host took the last one, the device learns
        of it, without a wait."""
        if self._now_is != self.step:
            self._now.fill_(self.step)
        self.step += 1
        self._now_is = self.step


def _rates(lr: float) -> Tensor:
    """[SETTLED + 1, 2], float64; step 0 is never taken."""
    each = (bias_corrections(step) for step in range(1, STEADY_FROM_STEP + 1))
    found = [(0.0, 0.0), *((lr * size, eps) for size, eps in each)]
    return torch.tensor(found, dtype=torch.float64)


# A row lies in one piece, its optimiser's moments behind its values: reading it is one miss of
# the
# cache, not three. Behind the last row of a table is one of zeros, which a step may read any
# number
# of times: it gets no gradient and stays what it is.

# Rows settled at once: what a CPU's cache holds. A GPU's time for so few is that of starting work.
ON_CPU, ON_GPU = 2**12, 2**17


class RowTable(Protocol):
    """A step is `read`, then `update` of the same rows once the pace has advanced."""

    values: Tensor
    """[rows, width], a view of the table: what a step writes can be read here."""

    def read(self, ids: Tensor) -> Tensor:
        """Rows [len(ids), width] as the coming step finds them; no id twice, but len(values), which
        is a row of zeros that gets no gradient."""

    def update(self, gradient: Tensor) -> None:
        """Take the step with the gradient [len(ids), width] of the rows that were read."""

    def whole(self, ids: Tensor) -> Tensor:
        """All that a step changes of these rows, as of now: [parts, len(ids), width]."""

    def replace(self, ids: Tensor, whole: Tensor) -> None:
        """Go on from such rows; no id twice."""

    def settle(self) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...


class SgdRows:
    """A row without a gradient stays where it is: nothing to remember."""

    def __init__(self, start: Tensor, pace: StepCounter) -> None:
        self._table = torch.cat([start, torch.zeros_like(start[:1])])
        self.values, self._pace = self._table[:-1], pace

    def read(self, ids: Tensor) -> Tensor:
        self._ids = ids
        return self._table.index_select(0, ids)

    def update(self, gradient: Tensor) -> None:
        self._table.index_add_(0, self._ids, gradient, alpha=-self._pace.lr)

    def whole(self, ids: Tensor) -> Tensor:
        return self.values.index_select(0, ids)[None]

    def replace(self, ids: Tensor, whole: Tensor) -> None:
        write_rows(self.values, ids, whole[0])

    def settle(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        assert not state


class LazyAdamRows:
    """SparseAdam's rule: rows without a gradient do not move, and eps is not bias-corrected."""

    def __init__(self, start: Tensor, pace: StepCounter) -> None:
        rows, width = start.shape
        whole = torch.zeros(rows + 1, 3, width, dtype=start.dtype, device=start.device)
        self._flat, self._table = whole.view(rows + 1, 3 * width), whole[:-1]
        self._table[:, 0] = start
        self.values = self._table[:, 0]
        self._pace = pace

    def read(self, ids: Tensor) -> Tensor:
        self._take(ids)
        return self._read[0]

    def update(self, gradient: Tensor) -> None:
        size, _ = self._pace.bias_corrections()
        adam_update(self._read, gradient, size, EPS)
        self._put_back()

    def whole(self, ids: Tensor) -> Tensor:
        self.read(ids)
        return self._read

    def replace(self, ids: Tensor, whole: Tensor) -> None:
        self._ids, self._read = ids, whole
        self._put_back()

    def settle(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {"step": self._pace.step, "moments": self._table[:, 1:]}

    def load(self, state: dict[str, Any]) -> None:
        self._pace.resume_after(state["step"])
        self._table[:, 1:] = state["moments"]

    def _take(self, ids: Tensor) -> None:
        # Side by side in the table, apart here: arithmetic on pieces of rows would be slow.
        self._ids = ids
        rows = self._flat.index_select(0, ids)
        self._read = rows.view(len(ids), *self._table.shape[1:]).transpose(0, 1).contiguous()

    def _put_back(self) -> None:
        write_rows(self._flat, self._ids, torch.cat(self._read.unbind(), dim=1))


class AdamRows(LazyAdamRows):
    """Adam's mathematics for every row: an idle one is caught up when it is next read."""

    def __init__(self, start: Tensor, pace: StepCounter) -> None:
        super().__init__(start, pace)
        self._steps = torch.zeros(len(start) + 1, dtype=torch.int64, device=start.device)
        self._last = self._steps[:-1]
        self._idle = IdleAdam(start.device)

    def read(self, ids: Tensor) -> Tensor:
        self._take(ids)
        self._catch_up()
        return self._read[0]

    def update(self, gradient: Tensor) -> None:
        adam_update(self._read, gradient, *self._pace.bias_corrections())
        self._put_back()
        taken = self._pace.current
        if isinstance(taken, Tensor):  # index_fill_ would ask for its value
            self._steps.index_copy_(0, self._ids, taken.expand(len(self._ids)))
            return
        self._steps.index_fill_(0, self._ids, taken)
        if taken == MAX_SINGLE_STEP:
            self.settle()

    def replace(self, ids: Tensor, whole: Tensor) -> None:
        super().replace(ids, whole)
        self._last.index_fill_(0, ids, self._pace.step)

    def settle(self) -> None:
        for ids in self._behind():
            self._take(ids)
            self._catch_up()
            self._put_back()
        self._last.fill_(self._pace.step)

    def _behind(self) -> Iterable[Tensor]:
        """Ids of the rows to catch up. Which are behind only their device knows: a GPU catches up
        all, which changes nothing where there is nothing to catch up, and no host waits."""
        if self._last.device.type == "cpu":
            behind = (self._last < self._pace.step).nonzero().squeeze(1)
            return torch.split(behind, ON_CPU)
        return torch.split(torch.arange(len(self._last), device=self._last.device), ON_GPU)

    def _catch_up(self) -> None:
        last, now = self._steps.index_select(0, self._ids), self._pace.current
        if isinstance(now, int) and now <= MAX_SINGLE_STEP:
            catch_up_stepwise(self._read, last, now, self._pace.lr)
        else:
            self._idle.catch_up(self._read, last, now, self._pace.lr)

    def state(self) -> dict[str, Any]:
        return super().state() | {"last": self._last}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._last.copy_(state["last"])


def adam_update(parts: Tensor, gradient: Tensor, size: Rate, eps: Rate) -> None:
    """Adam's step on values, m and v [3, ...] in place."""
    values, first, second = parts
    first.lerp_(gradient, 1 - BETA1)
    second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    root = second.sqrt().add_(eps)
    # The same bits as with a `value` on CPUs alone, which multiply it before they divide: torch on
    # a GPU divides first.
    if isinstance(size, Tensor):
        values.addcdiv_(first * -size, root)
    else:
        values.addcdiv_(first, root, value=-size)


def write_rows(table: Tensor, ids: Tensor, rows: Tensor) -> None:
    """table[ids] = rows, no id twice. numpy copies row by row, torch on a CPU value by value."""
    if table.device.type == "cpu" and not torch.compiler.is_compiling():
        table.numpy()[ids.numpy()] = rows.numpy()
    else:
        table.index_copy_(0, ids, rows)


class DenseLayers:
    """Adam or gradient descent of all but the tables. A step has a gradient for each of them."""

    def __init__(self, model: NeuMF, training: Training, pace: StepCounter) -> None:
        parameters = [each for part in model.layers() for each in part.parameters()]
        values = torch.cat([each.detach().reshape(-1) for each in parameters])
        # Values, and both moments behind them [3, n].
        self.parts = torch.stack([values, torch.zeros_like(values), torch.zeros_like(values)])
        self.gradient = torch.zeros_like(values)
        self._pace, self._descends = pace, training.optimizer == "sgd"
        sizes = [each.numel() for each in parameters]
        views = (torch.split(whole, sizes) for whole in (self.parts[0], self.gradient))
        for each, mine, gradient in zip(parameters, *views, strict=True):
            # backward() adds to a gradient that is there already, in place.
            each.data, each.grad = mine.view_as(each), gradient.view_as(each)

    def update(self) -> None:
        """Take the step with the gradient that backward left, and make room for the next."""
        if self._descends:
            self.parts[0].sub_(self.gradient, alpha=self._pace.lr)
        else:
            adam_update(self.parts, self.gradient, *self._pace.bias_corrections())
        self.gradient.zero_()

    def state(self) -> dict[str, Tensor | int]:
        return {"step": self._pace.step, "moments": self.parts[1:]}

    def load(self, state: dict[str, Any]) -> None:
        self._pace.resume_after(state["step"])
        self.parts[1:] = state["moments"]


ROW_OPTIMIZERS: dict[str, Callable[[Tensor, StepCounter], RowTable]] = {
    "adam": AdamRows,
    "lazy_adam": LazyAdamRows,
    "sgd": SgdRows,
}
