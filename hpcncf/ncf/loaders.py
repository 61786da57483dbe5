"""A rank's training batches, four ways: a sample, a batch, no DataLoader, or on the device itself.

All four give the same instances in the same order, whatever the number of ranks or workers: step
s of an epoch is positions s * B to (s + 1) * B of the epoch's order, and each rank its shard of
those. They differ in how much Python runs for each instance, which is what they are here to show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch

from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.fetching import Fetcher
from hpcncf.ncf.instances import Batch, Order, Rows, Schedule, Source, batch_of
from hpcncf.ncf.resident import Resident
from hpcncf.spec import Training

CPU = torch.device("cpu")
GATHERED = 4_096  # rows at once, of several steps where these are short: numpy's calls cost alike


class Loader:
    """The batches of one rank. `epoch` may begin at any step."""

    def __init__(
        self,
        data: Prepared,
        training: Training,
        schedule: Schedule,
        device: torch.device = CPU,
    ) -> None:
        """`device` is where loader `device` makes them; all others do in the rank's own memory."""
        resident = training.loader == "device"
        self.resident = Resident(data, training, schedule, device) if resident else None
        self._source = Source(data, training)
        self._training, self._schedule = training, schedule
        self._empty = self._source.gather(0, np.empty(0, dtype=np.int64))

    def epoch(self, epoch: int, steps: range) -> Iterator[Batch]:
        """One batch for each of these steps of the epoch, empty where the rank has no row."""
        return map(batch_of, self.rows(epoch, steps))

    def rows(self, epoch: int, steps: range) -> Iterator[Rows]:
        """The same, each positive's user and context once."""
        if self.resident:
            return self.resident.rows(epoch, steps)
        kinds: dict[str, Callable[[int, range], Iterator[Rows]]] = {
            "per_sample": self._fetched,
            "batched": self._fetched,
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

    def _fetched(self, epoch: int, steps: range) -> Iterator[Rows]:
        fetched = self._fetcher.epoch(epoch, steps)
        for step in steps:
            start, stop = self._schedule.positions(step)
            yield next(fetched) if stop > start else self._empty

    @cached_property
    def _fetcher(self) -> Fetcher:
        """One for all epochs, so that its workers may persist."""
        return Fetcher(self._source, self._training, self._schedule)
