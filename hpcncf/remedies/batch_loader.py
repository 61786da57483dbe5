"""Whole batches by one gather, in place of a `__getitem__` and a collate for each sample."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

# Batches that are timed before a thread may start, those that it makes ahead, and what pays for it.
TIMED: Final = 20
AHEAD: Final = 2
PAYS_S: Final = 3e-4
PAYS_SHARE: Final = 0.1

Made = Callable[[Any], Any]


class BatchLoader(IterableDataset[Any]):
    """Batches of tensors, or of a data set that makes whole batches, as a DataLoader gives them.

    `BatchLoader(x, y, batch_size=1024, shuffle=True)` yields `[x[rows], y[rows]]`: the same batches
    in the same order as `DataLoader(TensorDataset(x, y), batch_size=1024, shuffle=True)`, bit for
    bit. A TensorDataset, and a Subset of one, are taken apart in the same way.

    A data set with `__getitems__(rows: list[int])` is called once for each batch and returns the
    batch; a list is one of samples, as PyTorch's own contract has it, and is collated.

    `transform`: called with each batch's parts, as for negatives: `lambda users, items:
    sampler.labelled(users, items, 4)`. If a thread may run it, it must draw from a generator of its
    own. `sampler`: the rows of an epoch, as a DistributedSampler. `prefetch`: batches that a thread
    makes ahead; 0: none; None: a thread starts after 20 batches if making them took a tenth of the
    time and 0.3 ms each, and this process may use two cores.

    In `DataLoader(loader, batch_size=None, num_workers=n)` each worker makes its share of the
    batches, and their order stays the same.
    """

    def __init__(
        self,
        *data: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        sampler: Iterable[int] | None = None,
        transform: Callable[..., Any] | None = None,
        prefetch: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, came {batch_size}")
        if shuffle and sampler is not None:
            raise ValueError(
                "sampler and shuffle exclude each other: the sampler decides the order"
            )
        self.dataset: Any = data[0] if len(data) == 1 else data
        self._columns, self._rows = _columns(data)
        columns = [self.dataset] if self._columns is None else self._columns
        self._length = len(columns[0] if self._rows is None else self._rows)
        self.batch_size, self.shuffle, self.drop_last = batch_size, shuffle, drop_last
        self.generator, self.sampler, self.transform = generator, sampler, transform
        self.prefetch = prefetch
        self._begun = 0
        """Epochs in this worker."""

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        rows = self._length if self.sampler is None else len(self.sampler)  # type: ignore[arg-type]
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to the sampler, the transform and the data set if they accept one."""
        owner = getattr(self.transform, "__self__", None)
        for part in (self.sampler, self.transform, owner, self.dataset):
            if part is not None and hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            # A DataLoader draws its workers' seed here, and the order with the first batch.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            return self._prefetched(self._batches(self.generator))
        self._begun += 1  # workers that stay have one seed for all epochs
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(worker.seed - worker.id + self._begun)  # one order for all workers
            batches = list(self._batches(None))
        return map(self._made, batches[worker.id :: worker.num_workers])

    def _batches(self, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield the rows of each batch, as a slice or as an int64 tensor [rows]."""
        order = self._rows
        if self.sampler is not None:
            order = torch.as_tensor(list(self.sampler), dtype=torch.int64)
        elif self.shuffle:
            own = generator
            if own is None:
                seed = int(torch.empty((), dtype=torch.int64).random_().item())
                own = torch.Generator().manual_seed(seed)
            order = torch.randperm(self._length, generator=own)
        if self._rows is not None and order is not self._rows:
            order = self._rows[order]
        length = self._length if order is None else len(order)
        for start in range(0, length, self.batch_size):
            stop = min(start + self.batch_size, length)
            if self.drop_last and stop - start < self.batch_size:
                break
            yield slice(start, stop) if order is None else order[start:stop]
        if self.shuffle and generator is not None:
            # RandomSampler draws another order behind the last, of which it uses nothing.
            torch.randperm(self._length, generator=generator)

    def _made(self, rows: Any) -> Any:
        if self._columns is not None:
            batch: Any = [_part(column, rows) for column in self._columns]
            return batch if self.transform is None else self.transform(*batch)
        listed = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
        batch = self.dataset.__getitems__(listed)
        if isinstance(batch, list):
            batch = default_collate(batch)
        if self.transform is None:
            return batch
        return self.transform(*batch) if isinstance(batch, tuple | list) else self.transform(batch)

    def _prefetched(self, batches: Iterator[Any]) -> Iterator[Any]:
        ahead = self.prefetch
        if ahead is None:
            ahead = AHEAD if _usable_cores() > 1 else 0
            making_s, began = 0.0, time.perf_counter()
            for at, rows in enumerate(batches):
                start = time.perf_counter()
                made = self._made(rows)
                now = time.perf_counter()
                making_s += now - start
                pays = making_s >= max((at + 1) * PAYS_S, PAYS_SHARE * (now - began))
                yield made
                if at + 1 == TIMED:
                    ahead = ahead if pays else 0
                    break
        if not ahead:
            yield from map(self._made, batches)
            return
        # A thread of torch's own would take the cores of the training.
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            waiting: deque[Any] = deque()
            try:
                for rows in batches:
                    waiting.append(pool.submit(self._made, rows))
                    if len(waiting) > ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for each in waiting:
                    each.cancel()


def _columns(data: Sequence[Any]) -> tuple[list[Tensor] | None, Tensor | None]:
    """Return a data set's tensors (None for a user's own class), and a Subset's row numbers."""
    if not data:
        raise ValueError("expected tensors, or a data set")
    first, rows = data[0], None
    while len(data) == 1 and isinstance(first, Subset):
        chosen = torch.as_tensor(first.indices, dtype=torch.int64)
        first, rows = first.dataset, chosen if rows is None else chosen[rows]
    if len(data) == 1 and isinstance(first, TensorDataset):
        return list(first.tensors), rows
    if len(data) == 1 and rows is None and hasattr(first, "__getitems__"):
        return None, None
    if isinstance(data[-1], int):
        raise ValueError(f"{data[-1]}: give the size of a batch by name, batch_size={data[-1]}")
    wrong = [each for each in data if not isinstance(each, Tensor | np.ndarray | list)]
    if wrong or rows is not None:
        raise ValueError(
            f"{type(wrong[0] if wrong else data[0]).__name__}: expected tensors, arrays, a "
            "TensorDataset or a data set with __getitems__"
        )
    columns = [torch.as_tensor(each) for each in data]
    lengths = [len(each) for each in columns]
    if len(set(lengths)) > 1:
        raise ValueError(f"expected tensors of one length, came {lengths}")
    return columns, None


def _part(column: Tensor, rows: Any) -> Tensor:
    if isinstance(rows, slice):
        return column[rows].clone()  # a batch is the program's own, to change
    return column.index_select(0, rows.to(column.device))


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
