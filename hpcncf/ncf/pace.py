"""How many steps a training has taken, and how far Adam's next one goes: on the host or the device.

A step that is captured as a graph or compiled must not read them on the host: what stood there once
would hold for every step after it. There it reads tensors, which it moves on itself. The host's own
count goes on beside them, so that nobody has to ask the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hpcncf.ncf import idle

Rate = float | Tensor


class Pace:
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
    def taken(self) -> int | Tensor:
        """Steps so far; of the device [1]."""
        return self._now if self.on_device else self.step

    def advance(self) -> None:
        """The next step is being taken."""
        if self.on_device:
            self._now.add_(1)
        else:
            self.step += 1

    def rates(self) -> tuple[Rate, Rate]:
        """lr * a_t and e_t (`idle.rates`) of the step that is being taken; of the device [1] each.

        The device's are those of step `idle.SETTLED` from there on, which differ by 1e-9 at most.
        """
        if not self.on_device:
            size, eps = idle.rates(self.step)
            return self.lr * size, eps
        size_, eps_ = self._table.index_select(0, self._now.clamp(max=idle.SETTLED)).unbind(1)
        return size_, eps_

    def follow(self, step: int) -> None:
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

    def tell_device(self) -> None:
        """Before a step by the device's count: where the host took the last one, the device learns
        of it, without a wait."""
        if self._now_is != self.step:
            self._now.fill_(self.step)
        self.step += 1
        self._now_is = self.step


def _rates(lr: float) -> Tensor:
    """[SETTLED + 1, 2], float64; step 0 is never taken."""
    each = (idle.rates(step) for step in range(1, idle.SETTLED + 1))
    found = [(0.0, 0.0), *((lr * size, eps) for size, eps in each)]
    return torch.tensor(found, dtype=torch.float64)
