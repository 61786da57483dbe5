"""Exchange gradients between ranks, as messages or by rows, so that all keep one model.

With `sync: rows` each rank sends one message a step, read by all ranks over the process group. All
sum the same messages in rank order, so replicas that were equal before a step are bitwise equal
after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.model import NeuMF

Bytes = NDArray[np.uint8]

# torch 2.13 renamed it, and warns about the old name.
all_gather_tensor = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
ALIGNED = 64
LENGTH = np.dtype(np.int64).itemsize


class Transport:
    """Exchanges messages in host memory over the gloo process group.

    Every message is padded to the capacity: gathering the lengths first would take a second
    collective, which costs more than the bytes it saves.
    """

    def __init__(self, capacity: int, sent: Callable[[int], None]) -> None:
        """Allocate the buffers of messages up to `capacity` bytes.

        `sent` is called with the size in bytes of each message of this rank.
        """
        self.name = str(dist.get_backend())
        self._capacity, self._sent = capacity, sent
        self._ranks = dist.get_world_size()
        # The last bytes of a message hold its length.
        self._padded = -(-(capacity + LENGTH) // ALIGNED) * ALIGNED
        self._mine = aligned_zeros(self._padded)
        # Two buffers: a result is read until the exchange after the next.
        self._received = [aligned_zeros(self._ranks * self._padded) for _ in range(2)]

    def slot(self) -> Bytes:
        """Buffer for this rank's next message, `capacity` bytes, 64-byte aligned."""
        return self._mine[: self._capacity]

    def exchange(self, size: int) -> Sequence[Bytes]:
        """Send the first `size` bytes of the slot and return the messages of all ranks, by rank.

        It waits for the other ranks. A result is valid until the exchange after the next.

        Raises torch's RuntimeError if a rank is gone: gloo names an address, not a rank.
        """
        assert size <= self._capacity
        self._sent(size)
        self._mine[-LENGTH:].view(np.int64)[0] = size
        self._received.reverse()
        all_gather_tensor(torch.from_numpy(self._received[0]), torch.from_numpy(self._mine))
        messages = self._received[0].reshape(self._ranks, self._padded)
        return [each[: int(each[-LENGTH:].view(np.int64)[0])] for each in messages]


def aligned_zeros(size: int) -> Bytes:
    memory = np.zeros(size + ALIGNED, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + size]


ID = np.dtype(np.int64)


def row_message_capacity(model: NeuMF, schedule: Schedule, negatives: int) -> int:
    """Size in bytes of the longest message of engine rowwise.

    It has as many rows as the largest shard of a step can read.
    """
    largest = -(-min(schedule.batch, schedule.rows) // schedule.world_size)
    width = sum(table.embedding_dim for table in model.tables()[::2])
    layers = sum(each.numel() for part in model.layers() for each in part.parameters())
    value = model.predict_layer.weight.element_size()
    return largest * (2 + negatives) * (ID.itemsize + value * width) + value * layers


class RowExchange:
    """Sums gradients over all ranks through host memory.

    A message holds the ids [n], the gradient of the layers, and the rows' gradients [n, width]; n
    follows from its length.
    """

    def __init__(self, transport: Transport, layers: int, width: int) -> None:
        """Exchange `layers` values of the dense layers and rows of `width` values."""
        self._transport, self._layers, self._width = transport, layers, width

    def summed(self, layers: Tensor, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Sum the gradients of all ranks, in place for `layers`; returns row ids and gradients.

        `rows` [n, width] are this rank's gradients of the distinct `ids` [n]. The returned ids
        are the union of all ranks', ascending, with their summed gradients.
        """
        parts: list[NDArray[Any]] = [each.numpy() for each in (ids, layers, rows)]
        size, slot = sum(part.nbytes for part in parts), self._transport.slot()
        for part, place in zip(parts, self._views(slot[:size], parts[1].dtype), strict=True):
            place[:] = part
        messages = [self._read(each, layers) for each in self._transport.exchange(size)]
        all_ids = [ids for ids, _, _ in messages]
        union, where = torch.unique(torch.cat(all_ids), return_inverse=True)
        total = torch.zeros(len(union), self._width, dtype=rows.dtype)
        layers.zero_()
        places = torch.split(where, [len(each) for each in all_ids])
        for (_, their_layers, their_rows), at in zip(messages, places, strict=True):
            layers.add_(their_layers)
            # Rank by rank: the sum has the same order, and the same bits, on every rank.
            total.index_add_(0, at, their_rows)
        return union, total

    def _read(self, message: Bytes, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split a message into ids [n], gradient of the layers, and rows' gradients [n, width].

        The gradients have the type of `like`.
        """
        dtype = np.dtype(str(like.dtype).removeprefix("torch."))
        ids, layers, rows = map(torch.from_numpy, self._views(message, dtype))
        return ids, layers, rows

    def _views(self, message: Bytes, dtype: np.dtype[Any]) -> list[NDArray[Any]]:
        layers, row = self._layers * dtype.itemsize, self._width * dtype.itemsize
        count = (len(message) - layers) // (ID.itemsize + row)
        ids, values = message[: count * ID.itemsize], message[count * ID.itemsize :]
        return [
            ids.view(ID),
            values[:layers].view(dtype),
            values[layers:].view(dtype).reshape(count, self._width),
        ]
