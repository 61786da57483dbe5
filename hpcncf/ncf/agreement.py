"""At which step all ranks stop, or write a checkpoint: asked of one another about twice a second.

A rank that stopped on its own would leave the others waiting in their next step. So each tells
whether it was asked to stop, and what any of them says holds for all, at the same step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from hpcncf.rank.stopping import Request

EVERY_S = 0.5


@dataclass(frozen=True)
class Agreed:
    """What all ranks do after this step."""

    signum: int
    """The signal to stop by; 0: go on after the checkpoint."""


class Agreement:
    """One of all ranks; with one rank there is nobody to ask."""

    def __init__(
        self, world_size: int, device: torch.device, stop: Request, checkpoint_every_min: float
    ) -> None:
        """`checkpoint_every_min` 0: none is due, ever."""
        self._alone, self._device, self.stop = world_size == 1, device, stop
        self._checkpoint_every_s = checkpoint_every_min * 60
        self._saved_s = self._asked_s = time.perf_counter()
        self._every = self._left = 1

    def saved(self) -> None:
        """A checkpoint was written, at a step that all ranks know."""
        self._saved_s = time.perf_counter()

    def after_step(self, last: bool) -> Agreed | None:
        """To be called by every rank after the same steps, of the epoch's the last or not; None: go
        on."""
        if self._alone:
            return self._decided(self.stop.signum or 0, self._due())
        self._left -= 1
        if self._left > 0 and not last:
            return None
        passed_s = time.perf_counter() - self._asked_s
        # Of the three the largest, which is the same on all ranks to the last bit: a sum need not.
        told = [float(self.stop.signum or 0), float(self._due()), passed_s]
        all_told = torch.tensor(told, dtype=torch.float64, device=self._device)
        dist.all_reduce(all_told, op=dist.ReduceOp.MAX)
        signum, due, passed_s = all_told.tolist()
        taken = self._every - self._left  # fewer than planned at an epoch's end
        self._every = self._left = steps_until_next(taken, passed_s)
        self._asked_s = time.perf_counter()
        return self._decided(int(signum), bool(due))

    def _decided(self, signum: int, due: bool) -> Agreed | None:
        return Agreed(signum) if signum or due else None

    def _due(self) -> bool:
        every_s = self._checkpoint_every_s
        return every_s > 0 and time.perf_counter() - self._saved_s >= every_s


def steps_until_next(taken: int, passed_s: float) -> int:
    """So many that they take half a second, if each takes as long as the last `taken` did.

    At most twice as many as before: a burst of fast steps must not make the ranks deaf.
    """
    fitting = int(taken * EVERY_S / max(passed_s, 1e-9))
    return max(1, min(2 * taken, fitting))
