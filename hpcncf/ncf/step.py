"""One optimiser step of one rank, timed phase by phase.

The loss is the sum over this rank's instances, scaled so that DDP's mean over ranks is the mean
over all ranks' instances: shards may differ by a row, and may be empty. The exposed wait for
other ranks (`sync`) lasts from the moment the last bucket of gradients is handed to the
all-reduce, when this rank has no backward work left, until `backward()` returns with every
gradient averaged. It holds the transfer and the wait for ranks that come later. Times are the
host's: on a GPU a phase ends when its kernels are queued.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from hpcncf.ncf.loaders import Batch
from hpcncf.ncf.phases import StepClock


class Stepper:
    """The reference engine: the model as it stands, torch's Adam, DistributedDataParallel."""

    def __init__(
        self, model: nn.Module, lr: float, world_size: int, device: torch.device, clock: StepClock
    ) -> None:
        self.model, self.clock = model, clock
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self._device, self._world_size = device, world_size
        self._gradients_ready_at: float | None = None
        self._parallel = self._distributed() if world_size > 1 else model

    def _distributed(self) -> nn.Module:
        ids = [self._device] if self._device.type == "cuda" else None
        parallel = DistributedDataParallel(self.model, device_ids=ids)
        # A lambda: DDP takes annotations for types, and ours are text until somebody asks.
        parallel.register_comm_hook(None, lambda group, bucket: self._all_reduce(group, bucket))
        return parallel

    def _all_reduce(self, group: Any, bucket: Any) -> torch.futures.Future[Any]:
        """What DDP does without a hook, and a note of when: the last bucket's time stays."""
        self._gradients_ready_at = time.perf_counter()
        return allreduce_hook(group, bucket)

    def step(self, batches: Iterator[Batch], instances: int) -> tuple[float, int]:
        """Take the next batch, of `instances` over all ranks.

        Returns the seconds waited for it and this rank's share of the instances. The sum of the
        losses grows in `loss`, which stays a tensor: reading it would wait for a GPU.
        """
        clock = self.clock
        batch = next(batches).to(self._device)
        waited = clock.lap("input")
        logits = self._parallel(batch.users, batch.items, batch.context)
        loss = binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
        scaled = loss * (self._world_size / instances)
        clock.lap("forward")
        scaled.backward()  # type: ignore[no-untyped-call]
        clock.lap("backward", until=self._gradients_ready_at)
        clock.lap("sync" if self._world_size > 1 else "backward")
        self.optimizer.step()
        self.optimizer.zero_grad()
        clock.lap("optimizer")
        self.loss += loss.detach()
        return waited, len(batch.labels)
