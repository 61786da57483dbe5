"""Messages through shared memory of one node, and the choice of a transport."""

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
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from hpcncf.ncf.distributed import gather_objects
from hpcncf.ncf.engines.native.library import NotBuilt, load_library
from hpcncf.ncf.sync.transport import Bytes, GroupTransport, PeerLost, Transport
from hpcncf.worker.environment import Place

# Each rank has a cache line with the number of its last exchange and the sizes of its messages, and
# three slots: it writes the next message while others may still read its last two. The memory has
# no name (memfd), so nothing is left of it after its processes have ended, in whatever way. A rank
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


def uses_nccl(device: torch.device) -> bool:
    """Whether tensors go from GPU to GPU."""
    return device.type == "cuda" and dist.get_backend() == "nccl"


def open_transport(place: Place, capacity: int, device: torch.device) -> Transport:
    """A transport for messages of up to `capacity` bytes: shared memory if all ranks can use it,
    else the process group. All ranks must call it."""
    assert place.world_size > 1
    if device.type == "cpu" and place.local_world_size == place.world_size:
        gather = partial(gather_objects, place=place)
        found = join_shared_memory(place.rank, place.world_size, capacity, gather)
        if found is not None:
            return found
    return GroupTransport(capacity)
