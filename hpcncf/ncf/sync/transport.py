"""Transports between the ranks of a run: one message per rank and exchange, read by all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.ncf.step_clock import StepClock

Bytes = NDArray[np.uint8]

# torch 2.13 renamed it, and warns about the old name.
all_gather_tensor = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
ALIGNED = 64
LENGTH = np.dtype(np.int64).itemsize


class PeerLost(RuntimeError):
    """Another rank ended while this one waited for it."""

    def __init__(self, rank: int, *more: Any) -> None:
        super().__init__(f"rank {rank} ended while this one waited for it", *more)
        self.rank = rank


class Transport(Protocol):
    """Exchanges messages in host memory; their maximum size is fixed at the start."""

    name: str
    """The name in the record: `gloo`, `nccl` or `shared memory`."""

    def slot(self) -> Bytes:
        """The buffer for this rank's next message, `capacity` bytes, 64-byte aligned."""

    def exchange(self, size: int) -> Sequence[Bytes]:
        """Send the first `size` bytes of the slot, wait for the other ranks, return all messages by
        rank. A result is valid until the exchange after the next.

        If a rank is gone: raises PeerLost, which names it, or, over a process group, torch's
        RuntimeError, which does not.
        """

    def close(self) -> None: ...


class GroupTransport:
    """Exchanges host memory over the gloo process group.

    Every message is padded to the capacity: gathering the lengths first would take a second
    collective, which costs more than the bytes it saves.
    """

    def __init__(self, capacity: int) -> None:
        self.name, self._capacity = str(dist.get_backend()), capacity
        self._ranks = dist.get_world_size()
        # The last bytes of a message hold its length.
        self._padded = -(-(capacity + LENGTH) // ALIGNED) * ALIGNED
        self._mine = aligned_zeros(self._padded)
        # Two buffers: a result is read until the exchange after the next.
        self._received = [aligned_zeros(self._ranks * self._padded) for _ in range(2)]

    def slot(self) -> Bytes:
        return self._mine[: self._capacity]

    def exchange(self, size: int) -> Sequence[Bytes]:
        """Raises torch's RuntimeError if a rank is gone: gloo names an address, not a rank."""
        assert size <= self._capacity
        self._mine[-LENGTH:].view(np.int64)[0] = size
        self._received.reverse()
        all_gather_tensor(torch.from_numpy(self._received[0]), torch.from_numpy(self._mine))
        messages = self._received[0].reshape(self._ranks, self._padded)
        return [each[: int(each[-LENGTH:].view(np.int64)[0])] for each in messages]

    def close(self) -> None:
        """Nothing to do: the process group is destroyed at the end of the run."""


def aligned_zeros(size: int) -> Bytes:
    memory = np.zeros(size + ALIGNED, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + size]


class CountedTransport:
    """Reports the size of each message to the step clock."""

    def __init__(self, transport: Transport, clock: StepClock) -> None:
        self._transport, self._clock = transport, clock
        self.name, self.slot, self.close = transport.name, transport.slot, transport.close

    def exchange(self, size: int) -> Sequence[Bytes]:
        self._clock.sent(size)
        return self._transport.exchange(size)


class DeviceTransport:
    """Gathers tensors from GPU to GPU over nccl, without the host.

    Tests compare it with the other transports over gloo on CPUs. Not yet run on several GPUs.
    """

    def __init__(self, sent: Callable[[int], None]) -> None:
        """`sent` is called with the size in bytes of each message of this rank."""
        self.name, self.sent = str(dist.get_backend()), sent
        self.ranks = dist.get_world_size()

    def gather(self, mine: Tensor) -> Tensor:
        """Every rank's vector [n], n the same on all ranks: [ranks, n]."""
        self.sent(mine.nbytes)
        gathered = mine.new_empty(self.ranks * len(mine))
        all_gather_tensor(gathered, mine)
        return gathered.view(self.ranks, len(mine))

    def close(self) -> None:
        """Nothing to do: the process group is destroyed at the end of the run."""
