"""Exchange the gradients of the embedding rows that a step reads.

All ranks sum the same messages in rank order, so replicas that were equal before a step are
bitwise equal after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.ncf.instances import Schedule
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.sync.transport import Bytes, DeviceTransport, Transport

ID = np.dtype(np.int64)


def unique_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids, ascending, and the position of each of `ids` among them. On a GPU the host
    waits for their number."""
    found, where = torch.unique(ids, return_inverse=True)
    return found, where


def unique_ids_padded(ids: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """`unique_ids`, filled up with `padding` to the length of `ids`: no host waits."""
    ascending, order = ids.sort()
    fresh = ascending != torch.cat([ascending[:1], ascending[:-1]])
    place = fresh.cumsum(0)
    # Equal ids write the same value, so their order does not matter.
    found = torch.full_like(ids, padding).index_copy_(0, place, ascending)
    return found, torch.empty_like(ids).index_copy_(0, order, place)


def row_message_capacity(model: NeuMF, schedule: Schedule, negatives: int) -> int:
    """Bytes of the longest message: as many rows as the largest shard can read."""
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
        """`layers`: values in the gradient of the dense layers; `width`: values in a row."""
        self._transport, self._layers, self._width = transport, layers, width

    def summed(self, layers: Tensor, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Sum `layers` over all ranks in place, and the gradients `rows` [n, width] of the distinct
        `ids` [n]. Returns the union of the ids, ascending, and its gradients."""
        parts: list[NDArray[Any]] = [each.cpu().numpy() for each in (ids, layers, rows)]
        size, slot = sum(part.nbytes for part in parts), self._transport.slot()
        for part, place in zip(parts, self._views(slot[:size], parts[1].dtype), strict=True):
            place[:] = part
        messages = [self._read(each, layers) for each in self._transport.exchange(size)]
        all_ids = [ids for ids, _, _ in messages]
        union, where = unique_ids(torch.cat(all_ids))
        total = torch.zeros(len(union), self._width, dtype=rows.dtype, device=rows.device)
        layers.zero_()
        places = torch.split(where, [len(each) for each in all_ids])
        for (_, their_layers, their_rows), at in zip(messages, places, strict=True):
            layers.add_(their_layers)
            # Rank by rank, no row twice: a GPU adds to the same row in no defined order.
            total.index_add_(0, at, their_rows)
        return union, total

    def _read(self, message: Bytes, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, layers, rows, on the device of `like`."""
        dtype = np.dtype(str(like.dtype).removeprefix("torch."))
        parts = self._views(message, dtype)
        ids, layers, rows = (torch.from_numpy(part).to(like.device) for part in parts)
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


class PaddedExchange:
    """`RowExchange` from GPU to GPU. Every message has the maximum length, so that no host has to
    know how many rows a step reads."""

    def __init__(self, transport: DeviceTransport, rows: int, padding: int) -> None:
        """`rows`: the most that any rank reads in a step; `padding`: an id that no row has, whose
        gradients are zero."""
        self._transport, self._rows, self._padding = transport, rows, padding

    def summed(self, layers: Tensor, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """As `RowExchange.summed`, but `ids` may end with padding, and so does the union."""
        missing = self._rows - len(ids)
        all_ids = torch.cat([ids, ids.new_full((missing,), self._padding)])
        gradient = torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])
        # One tensor of the gradients' type: the bits of the ids, the layers, the rows.
        message = torch.cat([all_ids.view(rows.dtype), layers, gradient.reshape(-1)])
        messages = self._transport.gather(message)
        id_size = self._rows * ID.itemsize // rows.element_size()
        sizes = [id_size, len(layers), self._rows * rows.shape[1]]
        id_bits, their_layers, their_rows = torch.split(messages, sizes, dim=1)
        gathered = id_bits.reshape(-1).view(torch.int64)
        union, where = unique_ids_padded(gathered, self._padding)
        total = rows.new_zeros(len(union), rows.shape[1])
        layers.zero_()
        places = where.view(len(messages), self._rows)
        every = their_rows.reshape(len(messages), self._rows, -1)
        for each, at, values in zip(their_layers, places, every, strict=True):
            layers.add_(each)
            total.index_add_(0, at, values)
        return union, total
