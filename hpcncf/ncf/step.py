"""The reference engine: one optimiser step of one rank as torch does it, timed phase by phase.

The loss is the sum over this rank's instances, scaled so that DDP's mean over ranks is the mean
over all ranks' instances: shards may differ by a row, and may be empty. So may the parts that a
step is taken in. Times are the host's: on a GPU a phase ends when its kernels are queued.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from hpcncf.ncf import optimizers, ranking
from hpcncf.ncf.copying import on_device
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.forward import Forward
from hpcncf.ncf.instances import Batch
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.phases import StepClock
from hpcncf.ncf.precision import Steps
from hpcncf.ncf.ranking import Candidates
from hpcncf.ncf.replicas import Replicas
from hpcncf.ncf.sync import local
from hpcncf.spec import Training


class Reference:
    """The model as it stands, torch's optimisers, its compilers and its DistributedDataParallel."""

    def __init__(
        self,
        model: NeuMF,
        training: Training,
        world_size: int,
        device: torch.device,
        clock: StepClock,
    ) -> None:
        self.model, self.clock = model, clock
        self.optimizer = optimizers.chosen(model, training)
        self._steps = Steps(self.optimizer, training, device.type)
        self.loss: Tensor = torch.zeros((), dtype=torch.float64, device=device)
        self._device, self._training, self._parts = device, training, training.accumulate
        forward = Forward(model, training, world_size, device.type)
        self._replicas = Replicas(forward, training, world_size, device, clock.sent)
        self._shares = world_size if self._replicas.averages else 1

    def batches(self, loader: Loader, epoch: int, steps: range) -> Iterator[Batch]:
        batches = on_device(loader.epoch(epoch, steps), self._training, self._device)
        return map(Batch._make, batches)

    def step(
        self,
        batches: Iterator[Batch],
        instances: int,
        most: int = 1,  # noqa: ARG002  each by itself
    ) -> tuple[float, list[int]]:
        """The loss stays a tensor: reading it would wait for a GPU."""
        batch = next(batches)
        waited = self.clock.lap("input")
        *before, last = parts_of(batch, self._parts)
        for part in before:
            with self._replicas.apart():
                self._gradients(part, self._shares / instances)
            self.clock.lap("backward")
        self._gradients(last, self._shares / instances)
        self.clock.lap("backward", until=self._replicas.gradients_ready_at)
        self.clock.lap("sync" if self._replicas.averages else "backward")
        self._steps.take()
        self.clock.lap("optimizer")
        return waited, [len(batch.labels)]

    def _gradients(self, part: Batch, scale: float) -> None:
        """Added to those that are there."""
        logits = self._replicas(part.users, part.items, part.context)
        loss = binary_cross_entropy_with_logits(logits, part.labels, reduction="sum")
        scaled = self._steps.scaled(loss * scale)
        self.clock.lap("forward")
        scaled.backward()  # type: ignore[no-untyped-call]
        self.loss += loss.detach()

    @property
    def skipped_steps(self) -> int | None:
        return self._steps.skipped

    @torch.no_grad()
    def average(self) -> None:
        moments = optimizers.moments(self.optimizer)
        for size in local.all_reduce([*self.model.parameters(), *moments]):
            self.clock.sent(size)

    def settle(self) -> None:
        """Nothing lags behind: torch moves every row in every step, or never."""

    def ranks(
        self, data: Prepared, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        return ranking.ranks(self.model, data, first, last, candidates)

    def state(self) -> dict[str, Any]:
        return self._steps.state()

    def load(self, state: dict[str, Any]) -> None:
        self._steps.load(state)


def parts_of(batch: Batch, number: int) -> list[Batch]:
    """So many, of sizes that differ by one instance at most; the last ones may be empty."""
    if number == 1:
        return [batch]
    split = [torch.tensor_split(each, number) for each in batch]
    return [Batch(*parts) for parts in zip(*split, strict=True)]
