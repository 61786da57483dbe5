"""Exchange the gradients of the rows that a step read.

All ranks sum the same messages in the order of their ranks, so that replicas which were equal
before a step are equal after it, to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.ncf.instances import Schedule
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.sync.transport import Bytes, Transport

ID = np.dtype(np.int64)


def row_message_capacity(model: NeuMF, schedule: Schedule, negatives: int) -> int:
    """Bytes of the longest message: as many rows as the largest shard can read."""
    largest = -(-min(schedule.batch, schedule.rows) // schedule.world_size)
    width = sum(table.embedding_dim for table in model.tables()[::2])
    layers = sum(each.numel() for part in model.layers() for each in part.parameters())
    value = model.predict_layer.weight.element_size()
    return largest * (2 + negatives) * (ID.itemsize + value * width) + value * layers


class RowExchange:
    """Of an engine whose layers' gradient is one vector of `layers` values, its rows `width`."""

    def __init__(self, transport: Transport, layers: int, width: int) -> None:
        self._transport, self._layers, self._width = transport, layers, width

    def summed(self, layers: Tensor, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Add up all ranks' gradients: the layers' in place; of rows [n, width] with ids [n], none
        twice, it returns the union's ids, ascending, and its gradients."""
        size = self._write(layers, ids, rows)
        messages = [self._read(each, layers) for each in self._transport.exchange(size)]
        union, where = torch.unique(torch.cat([ids for _, ids, _ in messages]), return_inverse=True)
        total = torch.zeros(len(union), self._width, dtype=rows.dtype, device=rows.device)
        layers.zero_()
        places = torch.split(where, [len(ids) for _, ids, _ in messages])
        for (of_layers, _, of_rows), at in zip(messages, places, strict=True):
            layers.add_(of_layers)
            # No row twice: a GPU adds in no certain order what goes to the same one.
            total.index_add_(0, at, of_rows)
        return union, total

    def _write(self, layers: Tensor, ids: Tensor, rows: Tensor) -> int:
        parts: list[NDArray[Any]] = [each.cpu().numpy() for each in (ids, layers, rows)]
        size, slot = sum(part.nbytes for part in parts), self._transport.slot()
        for part, place in zip(parts, self._parts(slot[:size], parts[1].dtype), strict=True):
            place[:] = part
        return size

    def _read(self, message: Bytes, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Layers, ids, rows."""
        dtype = np.dtype(str(like.dtype).removeprefix("torch."))
        parts = self._parts(message, dtype)
        ids, layers, rows = (torch.from_numpy(part).to(like.device) for part in parts)
        return layers, ids, rows

    def _parts(self, message: Bytes, dtype: np.dtype[Any]) -> list[NDArray[Any]]:
        """Views: ids [n], layers, rows [n, width]; n follows from the message's length."""
        layers, row = self._layers * dtype.itemsize, self._width * dtype.itemsize
        count = (len(message) - layers) // (ID.itemsize + row)
        ids, values = message[: count * ID.itemsize], message[count * ID.itemsize :]
        return [
            ids.view(ID),
            values[:layers].view(dtype),
            values[layers:].view(dtype).reshape(count, self._width),
        ]
