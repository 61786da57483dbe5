"""A rank's training batches, three ways: a sample, a batch, or no DataLoader at all.

All three give the same instances in the same order, whatever the number of ranks or workers: step
s of an epoch is positions s * B to (s + 1) * B of the epoch's order, and each rank its shard of
those. They differ in how much Python runs for each instance, which is what they are here to show.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hpcncf.ncf import sampling
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.spec import Training

ORDER_CHUNK = 65_536
GATHERED = 4_096  # rows at once, of several steps where these are short: numpy's calls cost alike
TERMINATED_S = 10

Key = tuple[int, int]  # epoch, row
# Users [b], items [b, 1 + negatives] with the positive first, context [b, columns].
Rows = tuple[Tensor, Tensor, Tensor]


class Batch(NamedTuple):
    """Instances, each positive followed by its negatives; dtype int64, int64, float32, float32."""

    users: Tensor
    items: Tensor
    context: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        return Batch(*(each.to(device, non_blocking=True) for each in self))


def batch_of(rows: Rows) -> Batch:
    """Spread users and context over each positive's 1 + negatives instances, and label them."""
    users, items, context = rows
    each = items.shape[1]
    labels = torch.zeros(items.shape)
    labels[:, 0] = 1.0
    return Batch(
        users.repeat_interleave(each),
        items.reshape(-1),
        context.repeat_interleave(each, dim=0),
        labels.reshape(-1),
    )


@dataclass(frozen=True)
class Schedule:
    """Which positions of an epoch's order each step has, over all ranks and on this one."""

    rows: int
    batch: int
    """Positives per step over all ranks."""
    rank: int = 0
    world_size: int = 1

    @property
    def steps(self) -> int:
        return -(-self.rows // self.batch)

    def positives(self, step: int) -> int:
        """Over all ranks; fewer in an epoch's last step."""
        return min(self.batch, self.rows - step * self.batch)

    def positions(self, step: int) -> tuple[int, int]:
        """This rank's; empty where an epoch's last step has fewer positives than ranks."""
        start = step * self.batch
        return sampling.shard(start, start + self.positives(step), self.rank, self.world_size)


class Order:
    """An epoch's order, computed in chunks: a chunk is cheap per row, a batch alone is not."""

    def __init__(self, seed: int, epoch: int, rows: int) -> None:
        self._seed, self._epoch, self._rows = seed, epoch, rows
        self._start, self._chunk = 0, np.empty(0, dtype=np.int64)

    def between(self, start: int, stop: int) -> NDArray[np.int64]:
        """The rows at these positions."""
        if start < self._start or stop > self._start + len(self._chunk):
            end = min(max(start + ORDER_CHUNK, stop), self._rows)
            self._chunk = sampling.epoch_rows(self._seed, self._epoch, start, end, self._rows)
            self._start = start
        return self._chunk[start - self._start : stop - self._start]


class Source:
    """The prepared arrays and the settings that decide an instance."""

    def __init__(self, data: Prepared, training: Training) -> None:
        self.seed, self.negatives = training.seed, training.negatives
        self.items = data.manifest.items
        # Indexing a memmap makes a memmap each time; the plain array of the same pages does not.
        self.train_users = np.asarray(data.train_users)
        self.train_items = np.asarray(data.train_items)
        self.train_context = np.asarray(data.train_context)
        self.indptr = np.asarray(data.positives_indptr)
        self.positives = np.asarray(data.positives)

    def gather(self, epoch: int, rows: NDArray[np.int64]) -> Rows:
        """These rows with all their negatives at once."""
        users = self.train_users[rows].astype(np.int64)
        drawn = sampling.negatives(
            self.seed, epoch, rows, users, self.indptr, self.positives, self.items, self.negatives
        )
        items = np.concatenate([self.train_items[rows, None], drawn], axis=1)
        context = self.train_context[rows]
        return torch.from_numpy(users), torch.from_numpy(items), torch.from_numpy(context)


class PerSample(Dataset[Rows]):
    """One positive at a time, its negatives one by one in Python: the usual naive data set."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, key: Key) -> Rows:
        epoch, row = key
        source = self.source
        user = int(source.train_users[row])
        mine = source.positives[source.indptr[user] : source.indptr[user + 1]].tolist()
        drawn = sampling.row_negatives(
            source.seed, epoch, row, mine, source.items, source.negatives
        )
        items = torch.tensor([int(source.train_items[row]), *drawn])
        return torch.tensor(user), items, torch.tensor(source.train_context[row])


class Batched(Dataset[Rows]):
    """A batch at a time through `__getitems__`, with nothing left to collate."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, key: Key) -> Rows:
        return self.__getitems__([key])

    def __getitems__(self, keys: list[Key]) -> Rows:
        rows = np.fromiter((row for _, row in keys), dtype=np.int64, count=len(keys))
        return self.source.gather(keys[0][0], rows)


class Keys:
    """The DataLoader's batch sampler: this rank's (epoch, row) of each step that has any."""

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self.schedule, self.seed = schedule, seed
        self.epoch, self.steps = 0, range(0)

    def __iter__(self) -> Iterator[list[Key]]:
        order = Order(self.seed, self.epoch, self.schedule.rows)
        for step in self.steps:
            rows = order.between(*self.schedule.positions(step))
            if len(rows):
                yield [(self.epoch, row) for row in rows.tolist()]


def _quiet_worker(_: int) -> None:
    """One thread, and no part in how its rank handles signals.

    Slurm signals every process of a step: a rank that stops at its next step needs its worker
    until then. So SIGTERM, by which torch ends a worker that does not end by itself, ends it later.
    """
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(TERMINATED_S))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _as_is(rows: Any) -> Any:
    return rows


class Loader:
    """The batches of one rank. `epoch` may begin at any step."""

    def __init__(self, data: Prepared, training: Training, schedule: Schedule) -> None:
        self._source = Source(data, training)
        self._training, self._schedule = training, schedule
        self._empty = self._source.gather(0, np.empty(0, dtype=np.int64))

    def epoch(self, epoch: int, steps: range) -> Iterator[Batch]:
        """One batch for each of these steps of the epoch, empty where the rank has no row."""
        return map(batch_of, self.rows(epoch, steps))

    def rows(self, epoch: int, steps: range) -> Iterator[Rows]:
        """The same, each positive's user and context once."""
        kinds: dict[str, Callable[[int, range], Iterator[Rows]]] = {
            "per_sample": self._loaded,
            "batched": self._loaded,
            "vectorized": self._vectorized,
        }
        return kinds[self._training.loader](epoch, steps)

    def _vectorized(self, epoch: int, steps: range) -> Iterator[Rows]:
        order = Order(self._training.seed, epoch, self._schedule.rows)
        at_once = max(1, GATHERED // self._schedule.batch)
        for first in range(steps.start, steps.stop, at_once):
            some = range(first, min(first + at_once, steps.stop))
            mine = [order.between(*self._schedule.positions(step)) for step in some]
            lengths = [len(rows) for rows in mine]
            parts = self._source.gather(epoch, np.concatenate(mine))
            yield from zip(*(torch.split(part, lengths) for part in parts), strict=True)

    def _loaded(self, epoch: int, steps: range) -> Iterator[Rows]:
        self._keys.epoch, self._keys.steps = epoch, steps
        loaded = iter(self._loader)
        for step in steps:
            start, stop = self._schedule.positions(step)
            yield next(loaded) if stop > start else self._empty

    @cached_property
    def _keys(self) -> Keys:
        return Keys(self._schedule, self._training.seed)

    @cached_property
    def _loader(self) -> DataLoader[Rows]:
        """One for all epochs, so that its workers persist."""
        workers = self._training.num_workers
        common: dict[str, Any] = {
            "batch_sampler": self._keys,
            "num_workers": workers,
            "persistent_workers": workers > 0,
            "worker_init_fn": _quiet_worker,
            # It draws a seed for its workers: not from the generator that the model's dropout uses.
            "generator": torch.Generator(),
            # A forked worker shares the mapped data; any other start would send it through a pipe.
            "multiprocessing_context": "fork" if workers else None,
        }
        if self._training.loader == "per_sample":
            return DataLoader(PerSample(self._source), **common)
        return DataLoader(Batched(self._source), collate_fn=_as_is, **common)
