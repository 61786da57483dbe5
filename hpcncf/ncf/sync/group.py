"""Messages over torch.distributed: one gather of fixed size for each exchange.

A gather of messages as long as each happens to be would first have to gather the lengths: a second
collective costs more than the bytes it saves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from hpcncf.ncf.sync.transport import Bytes

# torch 2.13 gave it another name, and warns of the old one; before, there is no other.
GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
ALIGNED = 64
LENGTH = np.dtype(np.int64).itemsize


class Group:
    """Over the group that was joined, of gloo, from the host's memory."""

    def __init__(self, capacity: int) -> None:
        self.name, self._capacity = str(dist.get_backend()), capacity
        self._ranks = dist.get_world_size()
        # Behind the slot stands how much of it is sent.
        self._whole = -(-(capacity + LENGTH) // ALIGNED) * ALIGNED
        self._mine = aligned(self._whole)
        # What one exchange returns is read before the exchange after the next.
        self._received = [aligned(self._ranks * self._whole) for _ in range(2)]

    def slot(self) -> Bytes:
        return self._mine[: self._capacity]

    def exchange(self, size: int) -> Sequence[Bytes]:
        """Raises torch's RuntimeError where a rank is gone: gloo names an address, not a rank."""
        assert size <= self._capacity
        self._mine[-LENGTH:].view(np.int64)[0] = size
        self._received.reverse()
        GATHER(torch.from_numpy(self._received[0]), torch.from_numpy(self._mine))
        messages = self._received[0].reshape(self._ranks, self._whole)
        return [each[: int(each[-LENGTH:].view(np.int64)[0])] for each in messages]

    def close(self) -> None:
        """The group is left with the run."""


def aligned(size: int) -> Bytes:
    """Zeros, beginning at a multiple of 64."""
    memory = np.zeros(size + ALIGNED, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + size]
