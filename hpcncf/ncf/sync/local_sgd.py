"""Local SGD: ranks step independently and average their models every few steps.

Stich 2019, "Local SGD Converges Fast and Communicates Little". Adam's moments are averaged like the
parameters, so afterwards all ranks have one model again, bit by bit. Only table rows that some rank
read since the last average are exchanged; all others have idled in the same way on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.job.spec import Training
from hpcncf.ncf.sync.transport import Bytes, DeviceTransport, Transport

MESSAGE_CAPACITY = 2**20
"""Bytes of a message; longer vectors take several. A process group gathers all of it each time."""
MAX_SMALL_TENSOR = 2**18
"""Tensors with fewer values share one collective."""


class LocalEngine(Protocol):
    """An engine that knows which of its rows differ from those on the other ranks."""

    def touched_rows(self) -> Tensor:
        """Distinct ids of the rows that steps read since the last call, int64 [n]."""

    def read_state(self, ids: Tensor) -> Tensor:
        """One vector: layers and these rows after the last step, with their moments."""

    def write_state(self, ids: Tensor, state: Tensor) -> None:
        """Continue from such a vector."""


def uses_local_sgd(training: Training, world_size: int) -> bool:
    return training.sync == "local_sgd" and world_size > 1


def syncs_after(training: Training, world_size: int, step: int, steps: int) -> bool:
    """Whether all ranks have one model after step number `step` (from 0) of an epoch of `steps`."""
    if not uses_local_sgd(training, world_size):
        return True
    return steps_until_mean(training, step) == 1 or step + 1 == steps


def steps_until_mean(training: Training, step: int) -> int:
    """Number of steps from step number `step` (from 0) to the next average, inclusive."""
    return training.sync_every - step % training.sync_every


def average_engine(engine: LocalEngine, transport: Transport | DeviceTransport) -> None:
    """Replace every rank's model by the mean. All ranks must call it after the same step."""
    ids = gather_union(engine.touched_rows(), transport)
    state = engine.read_state(ids)
    if isinstance(transport, DeviceTransport):
        transport.sent(state.nbytes)
        dist.all_reduce(state)  # gives the same bits on each rank
        state.div_(transport.ranks)
    else:
        average_vector(state, transport)
    engine.write_state(ids, state)


def gather_union(ids: Tensor, transport: Transport | DeviceTransport) -> Tensor:
    """The distinct ids of all ranks, ascending."""
    if isinstance(transport, DeviceTransport):
        mine = torch.tensor([len(ids)], device=ids.device)
        counts = transport.gather(mine).reshape(-1).tolist()  # the host waits for these
        padded = ids.new_empty(max(counts))
        padded[: len(ids)] = ids
        every = zip(transport.gather(padded), counts, strict=True)
        found = [each[:count] for each, count in every]
    else:
        found, most = [ids[:0]], len(transport.slot()) // ids.element_size()
        for at in range(0, 2**62, most):
            # A message that is not full is a rank's last; all ranks see when all have sent theirs.
            messages = _exchange(ids[at : at + most], transport)
            # A copy: the next exchanges overwrite the messages.
            found += [torch.tensor(each, device=ids.device) for each in messages]
            if max(len(each) for each in messages) < most:
                break
    ascending: Tensor = torch.unique(torch.cat(found))
    return ascending


def average_vector(values: Tensor, transport: Transport) -> None:
    """Replace the vector [n] by the mean over all ranks: the same bits on each."""
    for part in torch.split(values, len(transport.slot()) // values.element_size()):
        first, *others = _exchange(part, transport)
        total = first.copy()
        for other in others:
            total += other
        total /= 1 + len(others)
        part.copy_(torch.from_numpy(total))


def _exchange(values: Tensor, transport: Transport) -> Sequence[NDArray[Any]]:
    mine = values.cpu().numpy()
    transport.slot()[: mine.nbytes].view(mine.dtype)[:] = mine
    received: Sequence[Bytes] = transport.exchange(mine.nbytes)
    return [np.asarray(each).view(mine.dtype) for each in received]


def average_tensors(tensors: Sequence[Tensor]) -> list[int]:
    """Replace whole tensors on any device by the mean over all ranks. Returns the bytes of each
    collective; the small tensors share one."""
    small = [each for each in tensors if each.numel() < MAX_SMALL_TENSOR]
    flat = torch.cat([each.reshape(-1) for each in small])
    together = [flat, *(each for each in tensors if each.numel() >= MAX_SMALL_TENSOR)]
    for each in together:
        dist.all_reduce(each)
        each.div_(dist.get_world_size())
    for each, part in zip(small, torch.split(flat, [s.numel() for s in small]), strict=True):
        each.copy_(part.view_as(each))
    return [each.nbytes for each in together]
