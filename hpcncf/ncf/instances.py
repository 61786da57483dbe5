"""The instances of a step on each rank, on the host or the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.job.spec import Training
from hpcncf.ncf import sampling
from hpcncf.ncf.data import buckets
from hpcncf.ncf.data.arrays import unpack_context
from hpcncf.ncf.data.prepared import Prepared

ORDER_CHUNK = 65_536

# Users [b], items [b, 1 + negatives] with the positive first, context [b, columns].
BatchRows = tuple[Tensor, Tensor, Tensor]


class Batch(NamedTuple):
    """Instances, each positive followed by its negatives; dtype int64, int64, float32, float32."""

    users: Tensor
    items: Tensor
    context: Tensor
    labels: Tensor


def build_batch(rows: BatchRows) -> Batch:
    """Spread users and context over each positive's 1 + negatives instances, and label them."""
    users, items, context = rows
    each = items.shape[1]
    labels = torch.zeros(items.shape, device=items.device)
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

    def equal_steps_from(self, step: int) -> int:
        """How many steps from this one on have as many positives; an epoch's last may have less."""
        return max(1, self.rows // self.batch - step)

    def positions(self, step: int) -> tuple[int, int]:
        """This rank's; empty where an epoch's last step has fewer positives than ranks."""
        start = step * self.batch
        return sampling.rank_shard(start, start + self.positives(step), self.rank, self.world_size)


class EpochOrder:
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


class InstanceSource:
    """The prepared arrays and the settings that decide an instance."""

    def __init__(self, data: Prepared, training: Training) -> None:
        self.seed, self.negatives = training.seed, training.negatives
        self.items = data.manifest.items
        # Indexing a memmap makes a memmap each time; the plain array of the same pages does not.
        self.train_rows = np.asarray(data.train_rows)
        self.indptr = np.asarray(data.positives_indptr)
        self.positives = np.asarray(data.positives)
        bounds, table = np.asarray(data.buckets_indptr), np.asarray(data.buckets)
        self.suspected = partial(buckets.possible_positives, bounds, table)

    def gather(self, epoch: int, rows: NDArray[np.int64]) -> BatchRows:
        """These rows with all their negatives at once."""
        mine = self.train_rows.take(rows)  # whole: each is in one place of memory
        users = mine["user"].astype(np.int64)
        known = self.seed, epoch, rows, users, self.indptr, self.positives, self.items
        drawn = sampling.sample_negatives(*known, count=self.negatives, suspected=self.suspected)
        items = np.concatenate([mine["item"][:, None], drawn], axis=1)
        context = torch.from_numpy(unpack_context(mine))
        return torch.from_numpy(users), torch.from_numpy(items), context
