"""Tables of embedding rows that a step reads and updates a few of, and the rules to move them by.

A row lies in one piece, its optimiser's moments behind its values: reading it is one miss of the
cache, not three. Behind the last row of a table is one of zeros, which a step may read any number
of times: it gets no gradient and stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from hpcncf.ncf import idle
from hpcncf.ncf.idle import BETA1, BETA2, EPS, ONE_BY_ONE, Idle
from hpcncf.ncf.pace import Pace, Rate

# Rows settled at once: what a CPU's cache holds. A GPU's time for so few is that of starting work.
ON_CPU, ON_GPU = 2**12, 2**17


class Rows_rows(Protocol):
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


class Sgd:
    """A row without a gradient stays where it is: nothing to remember."""

    def __init__(self, start: Tensor, pace: Pace) -> None:
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
        put(self.values, ids, whole[0])

    def settle(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        assert not state


class LazyAdam:
    """SparseAdam's rule: rows without a gradient do not move, and eps is not bias-corrected."""

    def __init__(self, start: Tensor, pace: Pace) -> None:
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
        size, _ = self._pace.rates()
        move(self._read, gradient, size, EPS)
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
        self._pace.follow(state["step"])
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

    def __init__(self, start: Tensor, pace: Pace) -> None:
        super().__init__(start, pace)
        self._steps = torch.zeros(len(start) + 1, dtype=torch.int64, device=start.device)
        self._last = self._steps[:-1]
        self._idle = Idle(start.device)

    def read(self, ids: Tensor) -> Tensor:
        self._take(ids)
        self._catch_up()
        return self._read[0]

    def update(self, gradient: Tensor) -> None:
        move(self._read, gradient, *self._pace.rates())
        self._put_back()
        taken = self._pace.taken
        if isinstance(taken, Tensor):  # index_fill_ would ask for its value
            self._steps.index_copy_(0, self._ids, taken.expand(len(self._ids)))
            return
        self._steps.index_fill_(0, self._ids, taken)
        if taken == ONE_BY_ONE:
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
        last, now = self._steps.index_select(0, self._ids), self._pace.taken
        if isinstance(now, int) and now <= ONE_BY_ONE:
            idle.one_by_one(self._read, last, now, self._pace.lr)
        else:
            self._idle.catch_up(self._read, last, now, self._pace.lr)

    def state(self) -> dict[str, Any]:
        return super().state() | {"last": self._last}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self._last.copy_(state["last"])


def move(parts: Tensor, gradient: Tensor, size: Rate, eps: Rate) -> None:
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


def put(table: Tensor, ids: Tensor, rows: Tensor) -> None:
    """table[ids] = rows, no id twice. numpy copies row by row, torch on a CPU value by value."""
    if table.device.type == "cpu" and not torch.compiler.is_compiling():
        table.numpy()[ids.numpy()] = rows.numpy()
    else:
        table.index_copy_(0, ids, rows)
