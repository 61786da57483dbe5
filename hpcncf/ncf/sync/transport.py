"""Messages between ranks: one per rank and exchange, read by all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hpcncf.ncf.step_clock import StepClock

Bytes = NDArray[np.uint8]


class Transport(Protocol):
    """Of all ranks of a run. Messages are of one size at most, known from the start."""

    name: str
    """As the record says it: `gloo`, `nccl`, `shared memory`."""

    def slot(self) -> Bytes:
        """Where this rank writes its next message, `capacity` bytes; 64-byte aligned."""

    def exchange(self, size: int) -> Sequence[Bytes]:
        """Send the first `size` bytes of the slot, wait for the others', return all by rank.

        What it returns is to be read before the exchange after the next. Where a rank is gone it
        raises PeerLost, which names it, or over a group torch's RuntimeError, which does not.
        """

    def close(self) -> None: ...


class PeerLost(RuntimeError):
    """Another rank ended while this one waited for it."""

    def __init__(self, rank: int, *more: Any) -> None:
        super().__init__(f"rank {rank} ended while this one waited for it", *more)
        self.rank = rank


# A gather of messages as long as each happens to be would first have to gather the lengths: a
# second
# collective costs more than the bytes it saves.

# torch 2.13 gave it another name, and warns of the old one; before, there is no other.
all_gather_tensor = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
ALIGNED = 64
LENGTH = np.dtype(np.int64).itemsize


class GroupTransport:
    """Over the group that was joined, of gloo, from the host's memory."""

    def __init__(self, capacity: int) -> None:
        self.name, self._capacity = str(dist.get_backend()), capacity
        self._ranks = dist.get_world_size()
        # Behind the slot stands how much of it is sent.
        self._whole = -(-(capacity + LENGTH) // ALIGNED) * ALIGNED
        self._mine = aligned_zeros(self._whole)
        # What one exchange returns is read before the exchange after the next.
        self._received = [aligned_zeros(self._ranks * self._whole) for _ in range(2)]

    def slot(self) -> Bytes:
        return self._mine[: self._capacity]

    def exchange(self, size: int) -> Sequence[Bytes]:
        """Raises torch's RuntimeError where a rank is gone: gloo names an address, not a rank."""
        assert size <= self._capacity
        self._mine[-LENGTH:].view(np.int64)[0] = size
        self._received.reverse()
        all_gather_tensor(torch.from_numpy(self._received[0]), torch.from_numpy(self._mine))
        messages = self._received[0].reshape(self._ranks, self._whole)
        return [each[: int(each[-LENGTH:].view(np.int64)[0])] for each in messages]

    def close(self) -> None:
        """The group is left with the run."""


def aligned_zeros(size: int) -> Bytes:
    """Zeros, beginning at a multiple of 64."""
    memory = np.zeros(size + ALIGNED, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + size]


class CountedTransport:
    """The transport it is given, counted."""

    def __init__(self, transport: Transport, clock: StepClock) -> None:
        self._transport, self._clock = transport, clock
        self.name, self.slot, self.close = transport.name, transport.slot, transport.close

    def exchange(self, size: int) -> Sequence[Bytes]:
        self._clock.sent(size)
        return self._transport.exchange(size)
