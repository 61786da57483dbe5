"""Exchange rows and averages between GPUs, without the host.

Over nccl from GPU to GPU; tests hold it to the others over gloo, on CPUs. Untested on more than one
GPU. What `sync: rows` sends is as long as it could be at most, so that no host has to know how many
rows a step reads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from hpcncf.ncf.engines.idle_rows import unique_ids_padded
from hpcncf.ncf.sync.local_sgd import LocalEngine
from hpcncf.ncf.sync.transport import all_gather_tensor

ID_BYTES = 8


class DeviceTransport:
    """Of all ranks of the group that was joined."""

    def __init__(self, sent: Callable[[int], None]) -> None:
        """`sent` is told the bytes of each message of this rank."""
        self.name, self._sent = str(dist.get_backend()), sent
        self.ranks = dist.get_world_size()

    def gathered(self, mine: Tensor) -> Tensor:
        """Every rank's [n], as long on each: [ranks, n]."""
        self._sent(mine.nbytes)
        of_all = mine.new_empty(self.ranks * len(mine))
        all_gather_tensor(of_all, mine)
        return of_all.view(self.ranks, len(mine))

    def average(self, engine: LocalEngine) -> None:
        """`local.average`: all ranks go on as one model."""
        ids = self.union(engine.touched_rows())
        part = engine.read_state(ids)
        self._sent(part.nbytes)
        dist.all_reduce(part)  # the same bits on each rank
        engine.write_state(ids, part.div_(self.ranks))

    def union(self, ids: Tensor) -> Tensor:
        """All ranks' ids, ascending. The host waits for how many there are."""
        counts = self.gathered(torch.tensor([len(ids)], device=ids.device)).reshape(-1).tolist()
        whole = ids.new_empty(max(counts))
        whole[: len(ids)] = ids
        every = zip(self.gathered(whole), counts, strict=True)
        ascending: Tensor = torch.unique(torch.cat([each[:count] for each, count in every]))
        return ascending

    def close(self) -> None:
        """The group is left with the run."""


class PaddedExchange:
    """`rows.Exchange` of as many rows from each rank in each step."""

    def __init__(self, ranks: DeviceTransport, rows: int, padding: int) -> None:
        """`rows`: the most that any rank reads in a step; `padding`: an id that no row has, whose
        gradients are zero."""
        self._ranks, self._rows, self._padding = ranks, rows, padding

    def summed(self, layers: Tensor, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Add up all ranks' gradients: the layers' in place; of rows [n, width] with ids [n], none
        twice but the padding, it returns the union's ids, padding behind, and its gradients."""
        messages = self._ranks.gathered(self._written(layers, ids, rows))
        of_layers, of_ids, of_rows = self._read(messages, layers, rows)
        union, where = unique_ids_padded(of_ids.reshape(-1), self._padding)
        total = rows.new_zeros(len(union), rows.shape[1])
        layers.zero_()
        # By rank: replicas that were equal stay so to the last bit, and no row stands twice.
        for mine, at, gradient in zip(of_layers, where.view_as(of_ids), of_rows, strict=True):
            layers.add_(mine)
            total.index_add_(0, at, gradient)
        return union, total

    def _written(self, layers: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
        """One message of the gradients' type: the ids' bits, layers, rows."""
        missing = self._rows - len(ids)
        all_ids = torch.cat([ids, ids.new_full((missing,), self._padding)])
        gradient = torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])
        return torch.cat([all_ids.view(rows.dtype), layers, gradient.reshape(-1)])

    def _read(
        self, messages: Tensor, layers: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of all ranks: layers [ranks, n], ids [ranks, rows], gradients [ranks, rows, width]."""
        sizes = [
            self._rows * ID_BYTES // rows.element_size(),
            len(layers),
            self._rows * rows.shape[1],
        ]
        of_ids, of_layers, of_rows = torch.split(messages, sizes, dim=1)
        ids = of_ids.reshape(-1).view(torch.int64).view(len(messages), self._rows)
        return of_layers, ids, of_rows.reshape(len(messages), self._rows, -1)
