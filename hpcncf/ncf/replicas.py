"""One model on several devices as torch has it: DistributedDataParallel, and DataParallel.

The exposed wait for other ranks (`sync`) lasts from the moment the last bucket of gradients is
handed to the all-reduce, when this rank has no backward work left, until `backward()` returns with
every gradient averaged. It holds the transfer and the wait for ranks that come later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hpcncf.spec import Training


class Replicas:
    """The same call as the module's. Gradients are averaged over ranks in `backward`."""

    def __init__(
        self,
        module: nn.Module,
        training: Training,
        world_size: int,
        device: torch.device,
        sent: Callable[[int], None],
    ) -> None:
        """`sent` is told the bytes of each bucket that is handed to the all-reduce."""
        self._sent = sent
        self.averages = world_size > 1 and training.sync == "dense"
        self.gradients_ready_at: float | None = None
        """When the last bucket was handed to the all-reduce."""
        torch.backends.cudnn.benchmark = training.cudnn_benchmark
        self._parallel: nn.Module = module
        if training.parallel == "data_parallel" and device.type == "cuda":
            self._parallel = DataParallel(module)
        elif self.averages:
            self._parallel = self._distributed(module, training, device)

    def __call__(self, users: Tensor, items: Tensor, context: Tensor) -> Tensor:
        logits: Tensor = self._parallel(users, items, context)
        return logits

    def apart(self) -> AbstractContextManager[None]:
        """Forward and backward passes in it add to this rank's gradients; nothing is exchanged."""
        if isinstance(self._parallel, DistributedDataParallel):
            return self._parallel.no_sync()
        return nullcontext()

    def _distributed(
        self, module: nn.Module, training: Training, device: torch.device
    ) -> DistributedDataParallel:
        settings: dict[str, Any] = {
            "device_ids": [device] if device.type == "cuda" else None,
            "gradient_as_bucket_view": training.gradient_as_bucket_view,
            "static_graph": training.static_graph,
        }
        if training.bucket_mb is not None:  # torch's default is not one size, but two
            settings["bucket_cap_mb"] = training.bucket_mb
        parallel = DistributedDataParallel(module, **settings)
        # A lambda: DDP takes annotations for types, and ours are text until somebody asks.
        parallel.register_comm_hook(None, lambda group, bucket: self._all_reduce(group, bucket))
        return parallel

    def _all_reduce(self, group: Any, bucket: Any) -> torch.futures.Future[Any]:
        """What DDP does without a hook, and a note of when: the last bucket's time stays."""
        self._sent(bytes_of(bucket.buffer()))
        self.gradients_ready_at = time.perf_counter()
        return allreduce_hook(group, bucket)


def warnings_replicas(training: Training, device: torch.device) -> list[str]:
    """What a setting does not do here, though it is allowed, so that both can be measured."""
    told = []
    if training.parallel == "data_parallel" and device.type == "cpu":
        told.append(
            "training.parallel data_parallel: DataParallel spreads batches over GPUs only; "
            "on a CPU torch runs the model itself, as if it were not asked for"
        )
    if training.cudnn_benchmark:
        told.append(
            "training.cudnn_benchmark has no effect: it chooses among algorithms for convolutions, "
            "and this model has none"
        )
    return told


def bytes_of(gradient: Tensor) -> int:
    """Of its values; of a sparse one's indices, too."""
    if not gradient.is_sparse:
        return gradient.nbytes
    return gradient._indices().nbytes + gradient._values().nbytes
