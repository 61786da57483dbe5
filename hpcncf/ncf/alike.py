"""Steps of whole batches, which are alike: one function, compiled, captured as a graph, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from hpcncf.ncf import forward
from hpcncf.ncf.captured import Captured, Window
from hpcncf.ncf.idle import ONE_BY_ONE
from hpcncf.ncf.instances import Rows
from hpcncf.ncf.pace import Pace
from hpcncf.ncf.resident import Resident
from hpcncf.spec import Training


class Alike:
    """Of one rank. `step` takes a batch of users, items and context, and reads nothing else on the
    host that changes."""

    def __init__(
        self,
        step: Callable[[Tensor, Tensor, Tensor], None],
        pace: Pace,
        training: Training,
        device: torch.device,
    ) -> None:
        compiles = training.compile == "inductor"
        self._step = forward.CompiledStep(step, training) if compiles else step
        self._pace, self._batch = pace, training.batch_over_ranks(1)
        self._window: Window | None = None
        self._captured: Captured | None = None
        if training.cuda_graph:
            self._captured = Captured(lambda: self._counted_there(None), device)

    def batches(self, resident: Resident, epoch: int, steps: range) -> Iterator[Rows | None]:
        """None for a whole batch, which lies in the window."""
        if self._window is None:
            self._window = resident.window()
        return self._window.steps(resident.drawn(epoch, steps))

    def takes(self, batch: Sequence[Tensor] | None) -> bool:
        """Whether the step is like the others: the first ten of a training are not."""
        whole = batch is None or len(batch[0]) == self._batch
        return whole and self._pace.step >= ONE_BY_ONE

    def take(self, batch: Sequence[Tensor] | None) -> None:
        self._pace.tell_device()
        if self._captured:
            self._captured()
        else:
            self._counted_there(batch)

    def following(self) -> Rows:
        assert self._window
        return self._window.following()

    def _counted_there(self, batch: Sequence[Tensor] | None) -> None:
        with self._pace.counted_on_device():
            self._step(*(batch or self.following()))
