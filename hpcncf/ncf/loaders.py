"""The ways to load batches, and the speed of a loader alone."""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from hpcncf.data.arrays import unpack_context
from hpcncf.data.negatives import sample_row_negatives
from hpcncf.data.prepared import PreparedData
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Training
from hpcncf.job.validate import shared_memory_bytes
from hpcncf.ncf.batches import (
    Batch,
    BatchRows,
    EpochOrder,
    InstanceSource,
    Resident,
    Schedule,
    build_batch,
)
from hpcncf.ncf.distributed import synchronize

TERMINATION_GRACE_S = 10
SHM: Final = "/dev/shm"

BatchKey = tuple[int, int]  # epoch, row
Collate = Callable[[list[Any]], BatchRows]


class PerSample(Dataset[BatchRows]):
    """Naive data set: one positive at a time, its negatives drawn one by one in Python."""

    def __init__(self, source: InstanceSource) -> None:
        self.source = source

    def __getitem__(self, key: BatchKey) -> BatchRows:
        epoch, row = key
        source = self.source
        sample = source.train_rows[row]
        user = int(sample["user"])
        mine = source.positives[source.indptr[user] : source.indptr[user + 1]].tolist()
        drawn = sample_row_negatives(source.seed, epoch, row, mine, source.items, source.negatives)
        items = torch.tensor([int(sample["item"]), *drawn])
        return torch.tensor(user), items, torch.from_numpy(unpack_context(sample))


class Batched(Dataset[BatchRows]):
    """Data set that makes a whole batch at once by `__getitems__`, with nothing left to collate."""

    def __init__(self, source: InstanceSource) -> None:
        self.source = source

    def __getitem__(self, key: BatchKey) -> BatchRows:
        return self.__getitems__([key])

    def __getitems__(self, keys: list[BatchKey]) -> BatchRows:
        rows = np.fromiter((row for _, row in keys), dtype=np.int64, count=len(keys))
        return self.source.gather(keys[0][0], rows)


class KeySampler:
    """Batch sampler for the DataLoader: this rank's (epoch, row) keys of each step that has any."""

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self.schedule, self.seed = schedule, seed
        self.epoch, self.steps = 0, range(0)

    def __iter__(self) -> Iterator[list[BatchKey]]:
        order = EpochOrder(self.seed, self.epoch, self.schedule.rows)
        for step in self.steps:
            rows = order.between(*self.schedule.positions(step))
            if len(rows):
                yield [(self.epoch, row) for row in rows.tolist()]


class DataLoaderFetcher:
    """Loads a rank's batches of an epoch through torch's DataLoader, for steps that have rows."""

    def __init__(self, source: InstanceSource, training: Training, schedule: Schedule) -> None:
        self._keys = KeySampler(schedule, training.seed)
        self._training = training
        self._data: PerSample | Batched = Batched(source)
        self._collate: Collate = lambda rows: rows  # type: ignore[assignment,return-value]
        if training.loader == "per_sample":
            self._data, self._collate = PerSample(source), default_collate
        self._loader = self._made()

    def epoch(self, epoch: int, steps: range) -> Iterator[BatchRows]:
        self._keys.epoch, self._keys.steps = epoch, steps
        return iter(self._loader)

    def _made(self) -> DataLoader[BatchRows]:
        """Build the DataLoader, one for all epochs so that its workers may persist."""
        training, workers = self._training, self._training.num_workers
        if workers:
            atexit.register(_end_workers)
        return DataLoader(
            self._data,
            batch_sampler=self._keys,
            num_workers=workers,
            collate_fn=self._collate,
            persistent_workers=workers > 0 and training.persistent_workers,
            prefetch_factor=training.prefetch_factor if workers else None,
            worker_init_fn=_quiet_worker,
            # It draws a seed for its workers: not from the generator that the model's dropout uses.
            generator=torch.Generator(),
            # A forked worker shares the mapped data; any other start would send it through a pipe.
            multiprocessing_context="fork" if workers else None,
        )


def _end_workers() -> None:
    """Kill the DataLoader workers that remain when this process ends.

    Persistent workers do remain. On SIGTERM, which Python would send them, they would end only
    after `TERMINATION_GRACE_S`.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler takes their end for a fault
    for each in multiprocessing.active_children():
        if each.daemon:
            each.kill()


def _quiet_worker(_: int) -> None:
    """Limit a DataLoader worker to one thread and keep it from reacting to signals.

    Slurm signals every process of a step: a rank that stops at its next step needs its worker
    until then. So SIGTERM, by which torch ends a worker that does not end by itself, ends it later.
    """
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(TERMINATION_GRACE_S))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def check_shared_memory(
    training: Training, schedule: Schedule, data: PreparedData, ranks: int
) -> None:
    """Check that the DataLoader workers' batches fit into this node's /dev/shm.

    Raises HpcncfError if those of `ranks` ranks do not: the workers would die by SIGBUS in the
    middle of an epoch.
    """
    if not Path(SHM).is_dir():
        return
    share = -(-schedule.batch // schedule.world_size)
    columns = len(data.manifest.context_columns)
    needed = shared_memory_bytes(training, share, columns) * ranks
    free = shutil.disk_usage(SHM).free
    if needed > free:
        raise HpcncfError(
            f"{SHM}: {free / 2**20:,.0f} MiB are free, but the DataLoader workers of {ranks} "
            f"rank{'s' * (ranks != 1)} need {needed / 2**20:,.0f} MiB for their batches. Use fewer "
            "num_workers, a smaller prefetch_factor or batch, or a larger /dev/shm (a container's "
            "--shm-size)"
        )


# All loaders on the host give the same instances in the same order, for any number of ranks or
# workers: step s of an epoch is positions s * B to (s + 1) * B of the epoch's order, and each rank
# takes its shard of those. They differ in the amount of Python that runs for each instance.

CPU = torch.device("cpu")
ROWS_AT_ONCE = 4_096
"""Rows gathered at once, of several short steps: a numpy call costs the same for few rows."""


class RankLoader:
    """The batches of one rank. `epoch` may begin at any step."""

    def __init__(
        self,
        data: PreparedData,
        training: Training,
        schedule: Schedule,
        device: torch.device = CPU,
    ) -> None:
        """Prepare to load a rank's batches, on `device` with loader `device`, else on the host."""
        # On a CPU the data is there already.
        self._on_device = training.loader == "device" and device.type != "cpu"
        self._data, self._device = data, device
        self._source = InstanceSource(data, training)
        self._training, self._schedule = training, schedule
        self._empty = self._source.gather(0, np.empty(0, dtype=np.int64))
        if self._on_device:
            _ = self.resident  # copied before the first step

    def epoch(self, epoch: int, steps: range) -> Iterator[Batch]:
        """Yield one batch for each step of the epoch, empty if the rank has no row in it."""
        return map(build_batch, self.rows(epoch, steps))

    def rows(self, epoch: int, steps: range) -> Iterator[BatchRows]:
        """Yield the batches as `epoch` does, but with user and context once per positive."""
        if self._training.loader in ("per_sample", "batched"):
            return self._fetched(epoch, steps)
        if self._on_device:
            return self.resident.rows(epoch, steps)
        return self._vectorized(epoch, steps)

    @cached_property
    def resident(self) -> Resident:
        """This rank's training data on the device, copied at first use."""
        return Resident(self._data, self._training, self._schedule, self._device)

    def _vectorized(self, epoch: int, steps: range) -> Iterator[BatchRows]:
        order = EpochOrder(self._training.seed, epoch, self._schedule.rows)
        at_once = max(1, ROWS_AT_ONCE // self._schedule.batch)
        for first in range(steps.start, steps.stop, at_once):
            some = range(first, min(first + at_once, steps.stop))
            mine = [order.between(*self._schedule.positions(step)) for step in some]
            lengths = [len(rows) for rows in mine]
            parts = self._source.gather(epoch, np.concatenate(mine))
            yield from zip(*(torch.split(part, lengths) for part in parts), strict=True)

    def _fetched(self, epoch: int, steps: range) -> Iterator[BatchRows]:
        fetched = self._fetcher.epoch(epoch, steps)
        for step in steps:
            start, stop = self._schedule.positions(step)
            yield next(fetched) if stop > start else self._empty

    @cached_property
    def _fetcher(self) -> DataLoaderFetcher:
        """The DataLoader, one for all epochs so that its workers may persist."""
        return DataLoaderFetcher(self._source, self._training, self._schedule)


@dataclass(frozen=True)
class LoaderSpeed:
    """Speed of one rank's loader."""

    first_batch_s: float
    """Time to the very first batch, start of the workers included."""
    next_epoch_s: float
    """Time to the first batch of the next epoch; its workers may have persisted."""
    batches: int
    instances: int
    """Positives and sampled negatives of these batches."""
    seconds: float
    """Time for these batches, waits at the start of epochs included."""

    @property
    def instances_per_s(self) -> float:
        return self.instances / self.seconds


def measure_loader(
    data: PreparedData,
    training: Training,
    schedule: Schedule,
    seconds: float,
    device: torch.device = CPU,
) -> LoaderSpeed:
    """Measure the time to the first batch of two epochs, then the speed over `seconds`.

    The rank must have rows in every step.
    """
    loader = RankLoader(data, training, schedule, device)

    def first_batch(epoch: int) -> float:
        began = time.perf_counter()
        list(loader.epoch(epoch, range(1)))
        return _now(device) - began

    first_s, again_s = first_batch(0), first_batch(1)
    steps = range(schedule.steps)
    batches = (batch for epoch in itertools.count(2) for batch in loader.epoch(epoch, steps))
    counted = instances = 0
    began = ended = time.perf_counter()
    while ended - began < seconds:
        instances += len(next(batches).labels)
        counted, ended = counted + 1, time.perf_counter()
    ended = _now(device)
    return LoaderSpeed(first_s, again_s, counted, instances, ended - began)


def _now(device: torch.device) -> float:
    """Current time in seconds, once all work queued on the device is done."""
    synchronize(device)
    return time.perf_counter()
