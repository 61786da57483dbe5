"""Tables of embedding rows that a step reads and updates a few of, and the rules to move them by.

A row lies in one piece, its optimiser's moments behind its values: reading it is one miss of the
cache, not three. Behind the last row of a table is one of zeros, which a step may read any number
of times: it gets no gradient and stays what it is.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from hpcncf.ncf import idle
from hpcncf.ncf.idle import BETA1, BETA2, EPS, ONE_BY_ONE, Idle

SETTLED_AT_ONCE = 4_096


class Rows(Protocol):
    """A step is `read`, then `update` of the same rows."""

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


class Sgd:
    """A row without a gradient stays where it is: nothing to remember."""

    def __init__(self, start: Tensor, lr: float) -> None:
        self._table = torch.cat([start, torch.zeros_like(start[:1])])
        self.values, self._lr = self._table[:-1], lr

    def read(self, ids: Tensor) -> Tensor:
        self._ids = ids
        return self._table.index_select(0, ids)

    def update(self, gradient: Tensor) -> None:
        self._table.index_add_(0, self._ids, gradient, alpha=-self._lr)

    def whole(self, ids: Tensor) -> Tensor:
        return self.values.index_select(0, ids)[None]

    def replace(self, ids: Tensor, whole: Tensor) -> None:
        put(self.values, ids, whole[0])

    def settle(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        assert not state


class LazyAdam:
    """SparseAdam's rule: rows without a gradient do not move, and eps is not bias-corrected."""

    def __init__(self, start: Tensor, lr: float) -> None:
        rows, width = start.shape
        whole = torch.zeros(rows + 1, 3, width, dtype=start.dtype, device=start.device)
        self._flat, self._table = whole.view(rows + 1, 3 * width), whole[:-1]
        self._table[:, 0] = start
        self.values = self._table[:, 0]
        self._lr, self._step = lr, 0

    def read(self, ids: Tensor) -> Tensor:
        self._take(ids)
        return self._read[0]

    def update(self, gradient: Tensor) -> None:
        self._step += 1
        size, _ = idle.rates(self._step)
        move(self._read, gradient, self._lr * size, EPS)
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
        return {"step": self._step, "moments": self._table[:, 1:]}

    def load(self, state: dict[str, Any]) -> None:
        self._step = state["step"]
        self._table[:, 1:] = state["moments"]

    def _take(self, ids: Tensor) -> None:
        # Side by side in the table, apart here: arithmetic on pieces of rows would be slow.
        self._ids = ids
        rows = self._flat.index_select(0, ids)
        self._read = rows.view(len(ids), *self._table.shape[1:]).transpose(0, 1).contiguous()

    def _put_back(self) -> None:
        put(self._flat, self._ids, torch.cat(self._read.unbind(), dim=1))


class Adam(LazyAdam):
    """Adam's mathematics for every row: an idle one is caught up when it is next read."""

    def __init__(self, start: Tensor, lr: float) -> None:
        super().__init__(start, lr)
        self._steps = torch.zeros(len(start) + 1, dtype=torch.int64, device=start.device)
        self._last = self._steps[:-1]
        self._idle = Idle(start.device)

    def read(self, ids: Tensor) -> Tensor:
        self._take(ids)
        self._catch_up()
        return self._read[0]

    def update(self, gradient: Tensor) -> None:
        self._step += 1
        size, eps = idle.rates(self._step)
        move(self._read, gradient, self._lr * size, eps)
        self._put_back()
        self._steps.index_fill_(0, self._ids, self._step)
        if self._step == ONE_BY_ONE:
            self.settle()

    def replace(self, ids: Tensor, whole: Tensor) -> None:
        super().replace(ids, whole)
        self._last.index_fill_(0, ids, self._step)

    def settle(self) -> None:
        behind = (self._last < self._step).nonzero().squeeze(1)
        for ids in torch.split(behind, SETTLED_AT_ONCE):
            self._take(ids)
            self._catch_up()
            self._put_back()
        self._last.fill_(self._step)

    def _catch_up(self) -> None:
        last = self._steps.index_select(0, self._ids)
        if self._step <= ONE_BY_ONE:
            idle.one_by_one(self._read, last, self._step, self._lr)
        else:
            self._idle.catch_up(self._read, last, self._step, self._lr)

    def state(self) -> dict[str, Any]:
        return super().state() | {"last": self._last}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._last.copy_(state["last"])


def move(parts: Tensor, gradient: Tensor, size: float, eps: float) -> None:
    """Adam's step on values, m and v [3, ...] in place."""
    values, first, second = parts
    first.lerp_(gradient, 1 - BETA1)
    second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    values.addcdiv_(first, second.sqrt().add_(eps), value=-size)


def put(table: Tensor, ids: Tensor, rows: Tensor) -> None:
    """table[ids] = rows, no id twice. numpy copies row by row, torch on a CPU value by value."""
    if table.device.type == "cpu":
        table.numpy()[ids.numpy()] = rows.numpy()
    else:
        table.index_copy_(0, ids, rows)
