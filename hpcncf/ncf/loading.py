"""How fast a rank's batches come where no model asks for them: the loader alone."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import torch

from hpcncf.ncf import distributed
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.instances import Schedule
from hpcncf.ncf.loaders import CPU, Loader
from hpcncf.spec import Training


@dataclass(frozen=True)
class Loaded:
    """What one rank's loader gave."""

    first_batch_s: float
    """Until the first batch of all: starting the workers is in it."""
    next_epoch_s: float
    """Until the first batch of the next epoch, whose workers may have persisted."""
    batches: int
    instances: int
    """Positives and sampled negatives of these batches."""
    seconds: float
    """That these batches took, the waits where an epoch begins included."""

    @property
    def instances_per_s(self) -> float:
        return self.instances / self.seconds


def measured(
    data: Prepared,
    training: Training,
    schedule: Schedule,
    seconds: float,
    device: torch.device = CPU,
) -> Loaded:
    """Of a rank that has rows in every step: the first batch of two epochs, then as many batches
    as come in so many seconds, through as many epochs as that takes."""
    loader = Loader(data, training, schedule, device)
    first_s, again_s = (_one_batch(loader, epoch, device) for epoch in range(2))
    steps = range(schedule.steps)
    batches = (batch for epoch in itertools.count(2) for batch in loader.epoch(epoch, steps))
    counted = instances = 0
    began = ended = time.perf_counter()
    while ended - began < seconds:
        instances += len(next(batches).labels)
        counted, ended = counted + 1, time.perf_counter()
    ended = _now(device)
    return Loaded(first_s, again_s, counted, instances, ended - began)


def _one_batch(loader: Loader, epoch: int, device: torch.device) -> float:
    began = time.perf_counter()
    list(loader.epoch(epoch, range(1)))
    return _now(device) - began


def _now(device: torch.device) -> float:
    """After all that was queued on the device is done."""
    distributed.finished(device)
    return time.perf_counter()
