"""Local SGD: ranks step alone and average now and then.

Stich 2019, "Local SGD Converges Fast and Communicates Little". Adam's moments are averaged as the
parameters are, so that after it the ranks are one model again, to the last bit. Of the tables only
those rows are exchanged that some rank moved since the last mean; the others have idled alike.
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
from hpcncf.ncf.sync.transport import Bytes, Transport

MESSAGE_CAPACITY = 2**20
"""Bytes of a message: what is longer goes in several. A group gathers all of it each time."""
MAX_SMALL_TENSOR = 2**18
"""Tensors of fewer values go in one collective."""


class LocalEngine(Protocol):
    """An engine that knows which of its rows are not as on the other ranks."""

    def touched_rows(self) -> Tensor:
        """Ids of the rows that steps read since the last call; int64 [n], none twice."""

    def read_state(self, ids: Tensor) -> Tensor:
        """One vector of all that a step changes: layers and these rows as of now, with moments."""

    def write_state(self, ids: Tensor, part: Tensor) -> None:
        """Go on from such a vector."""


def uses_local_sgd(training: Training, world_size: int) -> bool:
    """Whether ranks take their steps each by itself."""
    return training.sync == "local_sgd" and world_size > 1


def syncs_after(training: Training, world_size: int, step: int, steps: int) -> bool:
    """Whether all ranks have one model after the epoch's step number `step` of `steps`, from 0."""
    if not uses_local_sgd(training, world_size):
        return True
    return steps_until_mean(training, step) == 1 or step + 1 == steps


def steps_until_mean(training: Training, step: int) -> int:
    """Steps from number `step` of the epoch, from 0, up to and with the one before a mean."""
    return training.sync_every - step % training.sync_every


def average_engine(engine: LocalEngine, transport: Transport) -> None:
    """To be called by all ranks after the same step: they go on as one model."""
    ids = gather_union(engine.touched_rows(), transport)
    part = engine.read_state(ids)
    average_vector(part, transport)
    engine.write_state(ids, part)


def gather_union(ids: Tensor, transport: Transport) -> Tensor:
    """All ranks' ids, ascending."""
    found, most = [ids[:0]], len(transport.slot()) // ids.element_size()
    for at in range(0, 2**62, most):
        # The last one is not full: all see when every rank's was sent.
        messages = _exchanged(ids[at : at + most], transport)
        found += [torch.tensor(each, device=ids.device) for each in messages]  # a copy: they pass
        if max(len(each) for each in messages) < most:
            break
    ascending: Tensor = torch.unique(torch.cat(found))
    return ascending


def average_vector(values: Tensor, transport: Transport) -> None:
    """Replace the vector [n] by the mean over all ranks: the same bits on each."""
    for part in torch.split(values, len(transport.slot()) // values.element_size()):
        first, *others = _exchanged(part, transport)
        total = first.copy()
        for other in others:
            total += other
        total /= 1 + len(others)
        part.copy_(torch.from_numpy(total))


def _exchanged(values: Tensor, transport: Transport) -> Sequence[NDArray[Any]]:
    """All ranks' values, by rank."""
    mine = values.cpu().numpy()
    transport.slot()[: mine.nbytes].view(mine.dtype)[:] = mine
    received: Sequence[Bytes] = transport.exchange(mine.nbytes)
    return [np.asarray(each).view(mine.dtype) for each in received]


def average_tensors(tensors: Sequence[Tensor]) -> list[int]:
    """Replace whole tensors, wherever they are, by the mean over all ranks; returns the bytes of
    each collective. The small ones share one."""
    small = [each for each in tensors if each.numel() < MAX_SMALL_TENSOR]
    flat = torch.cat([each.reshape(-1) for each in small])
    together = [flat, *(each for each in tensors if each.numel() >= MAX_SMALL_TENSOR)]
    for each in together:
        dist.all_reduce(each)
        each.div_(dist.get_world_size())
    for each, part in zip(small, torch.split(flat, [s.numel() for s in small]), strict=True):
        each.copy_(part.view_as(each))
    return [each.nbytes for each in together]
