"""How ranks stay one model: messages, gradients of rows, local SGD.

Transports carry one message per rank and exchange, read by all ranks: over the process group, or
through shared memory of one node. With `sync: rows` all ranks sum the same messages
in rank order, so replicas that were equal before a step are bitwise equal after it. Local SGD
averages models every few steps (Stich 2019, "Local SGD Converges Fast and Communicates Little").
Adam's moments are averaged like the parameters, so afterwards all ranks have one model again, bit
by bit. Only rows that some rank read since the last average are exchanged; all others have idled
in the same way on every rank.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import time
from collections.abc import Callable, Sequence
from ctypes import CDLL
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.job.spec import Training
from hpcncf.launcher.environment import Place
from hpcncf.native.builds import NotBuilt, load_library
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.distributed import gather_objects
from hpcncf.ncf.model import NeuMF
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
    """The name in the record: `gloo` or `shared memory`."""

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


# Each rank has a cache line with the number of its last exchange and the sizes of its messages, and
# three slots: it writes the next message while others may still read its last two. The memory has
# no name (memfd), so nothing is left of it once its processes have ended. A rank
# locks one byte of it; the kernel releases the lock when the process ends, and the others notice.

LINE: Final = 64
SLOTS: Final = 3
MAX_BYTES: Final = 2**30
"""Larger messages are slow over any transport, and the memory belongs to the whole node."""
LIVENESS_CHECK_S: Final = 0.005
"""Time to wait for messages before checking that the other ranks are alive."""
TIMEOUT_S: Final = 600.0

Gather = Callable[[Any], list[Any]]
"""Returns every rank's value, by rank; all ranks must call it."""


class SharedMemoryTransport:
    """A transport between ranks of one node."""

    name = "shared memory"

    def __init__(self, native: CDLL, file: int, rank: int, ranks: int, capacity: int) -> None:
        """`file` is the opened memory, with this rank's lock held."""
        self._native, self._file, self._rank, self._turn = native, file, rank, 0
        memory = np.frombuffer(mmap.mmap(file, _size(ranks, capacity)), dtype=np.uint8)
        lines, slots = memory[: ranks * LINE], memory[ranks * LINE :]
        self._lines = lines.view(np.int64).reshape(ranks, LINE // 8)  # number, sizes
        self._slots = slots.reshape(SLOTS, ranks, -1)[:, :, :capacity]

    def slot(self) -> Bytes:
        mine: Bytes = self._slots[(self._turn + 1) % SLOTS, self._rank]
        return mine

    def exchange(self, size: int) -> Sequence[Bytes]:
        """Raises PeerLost if a rank ended, TimeoutError if one sends nothing for ten minutes."""
        assert size <= self._slots.shape[2]
        self._turn += 1
        now = self._turn % SLOTS
        self._lines[self._rank, 1 + now] = size
        self._native.hpcncf_publish(self._lines[self._rank].ctypes.data, self._turn)
        until = time.monotonic() + TIMEOUT_S
        while (missing := self._first_missing(LIVENESS_CHECK_S)) >= 0:
            # It may have sent its last message and ended since it was found missing.
            if not _is_locked(self._file, missing) and self._first_missing(0) == missing:
                raise PeerLost(missing)
            if time.monotonic() > until:
                raise TimeoutError(f"rank {missing} has sent nothing for {TIMEOUT_S:g} s")
        sizes = self._lines[:, 1 + now].tolist()
        return [slot[:size] for slot, size in zip(self._slots[now], sizes, strict=True)]

    def _first_missing(self, patience_s: float) -> int:
        """The first rank whose message has not come within `patience_s`; -1 if all have."""
        rank: int = self._native.hpcncf_await(
            self._lines.ctypes.data, len(self._lines), self._turn, patience_s
        )
        return rank

    def close(self) -> None:
        """Returned messages stay readable; ranks that still wait raise PeerLost."""
        os.close(self._file)


def join_shared_memory(
    rank: int, ranks: int, capacity: int, gather: Gather
) -> SharedMemoryTransport | None:
    """For messages of up to `capacity` bytes. None on every rank if one cannot join: it runs on
    another node or in its own container, memory is short, or engine native was not built."""
    native, file = None, None
    with contextlib.suppress(NotBuilt):
        native = load_library()
    if rank == 0 and native:
        file = _allocate(_size(ranks, capacity))
    link = None if file is None else Path(f"/proc/{os.getpid()}/fd/{file}")
    # With its unique name: on another node the same link may belong to another process.
    memory = gather(link and (link, link.readlink()))[0]
    if rank > 0 and native and memory:
        file = _open(*memory)
    if file is not None:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, rank)
    if all(gather(file is not None)) and native and file is not None:
        return SharedMemoryTransport(native, file, rank, ranks, capacity)
    if file is not None:
        os.close(file)
    return None


def _size(ranks: int, capacity: int) -> int:
    return ranks * LINE + SLOTS * ranks * -(-capacity // LINE) * LINE


def _allocate(size: int) -> int | None:
    """Reserves every byte now: a write to one that is missing would kill the process."""
    if size > MAX_BYTES:
        return None
    file = os.memfd_create(f"hpcncf-{secrets.token_hex(16)}")
    try:
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.close(file)
        return None
    return file


def _open(link: Path, name: Path) -> int | None:
    try:
        return os.open(link, os.O_RDWR) if link.readlink() == name else None
    except OSError:
        return None


def _is_locked(file: int, rank: int) -> bool:
    """Whether the rank's process still holds its lock."""
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, rank)
    except OSError:
        return True
    return False


def open_transport(place: Place, capacity: int) -> Transport:
    """A transport for messages of up to `capacity` bytes: shared memory if all ranks can use it,
    else the process group. All ranks must call it."""
    assert place.world_size > 1
    if place.local_world_size == place.world_size:
        gather = partial(gather_objects, place=place)
        found = join_shared_memory(place.rank, place.world_size, capacity, gather)
        if found is not None:
            return found
    return GroupTransport(capacity)


ID = np.dtype(np.int64)


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
        """Ids, layers, rows, of the type of `like`."""
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


MESSAGE_CAPACITY = 2**20
"""Bytes of a message; longer vectors take several. A process group gathers all of it each time."""
MAX_SMALL_TENSOR = 2**18
"""Tensors with fewer values share one collective."""


class LocalEngine(Protocol):
    """An engine that records which of its rows differ from those on the other ranks."""

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


def average_engine(engine: LocalEngine, transport: Transport) -> None:
    """Replace every rank's model by the mean. All ranks must call it after the same step."""
    ids = gather_union(engine.touched_rows(), transport)
    state = engine.read_state(ids)
    average_vector(state, transport)
    engine.write_state(ids, state)


def gather_union(ids: Tensor, transport: Transport) -> Tensor:
    """The distinct ids of all ranks, ascending."""
    found, most = [ids[:0]], len(transport.slot()) // ids.element_size()
    for at in range(0, 2**62, most):
        # A message that is not full is a rank's last; all ranks see when all have sent theirs.
        messages = _exchange(ids[at : at + most], transport)
        # A copy: the next exchanges overwrite the messages.
        found += [torch.tensor(each) for each in messages]
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
