"""The reference engine: one optimiser step of one rank as torch does it, timed phase by phase.

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
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from hpcncf.ncf import optimizers
from hpcncf.ncf.loaders import Batch, Loader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.phases import StepClock
from hpcncf.spec import Training


class Reference:
    """The model as it stands, torch's optimisers, DistributedDataParallel."""

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
        self.loss: Tensor = torch.zeros((), dtype=torch.float64, device=device)
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

    def batches(self, loader: Loader, epoch: int, steps: range) -> Iterator[Batch]:
        return loader.epoch(epoch, steps)

    def step(self, batches: Iterator[Batch], instances: int) -> tuple[float, int]:
        """The loss stays a tensor: reading it would wait for a GPU."""
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

    def settle(self) -> None:
        """Nothing lags behind: torch moves every row in every step, or never."""

    def state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)
