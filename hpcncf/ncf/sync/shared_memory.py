"""Messages through shared memory of one node, and the choice of a transport."""

from __future__ import annotations

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

# Each rank has a cache line with the number of its last exchange and the sizes of its messages,
# and
# three slots: it writes the next message while others may still read its last two. The memory
# has no
# name (memfd): nothing is left of it when its processes are gone, however they ended. A rank
# holds a
# lock on a byte of it, which the kernel lets go when the process ends: so the others know at
# once.

LINE: Final = 64
SLOTS: Final = 3
MAX_BYTES: Final = 2**30
"""Bytes of the memory. What needs more takes its time on any way, and the memory is the node's."""
LIVENESS_CHECK_S: Final = 0.005
"""So long it waits before it looks whether the others still live."""
TIMEOUT_S: Final = 600.0

Gather = Callable[[Any], list[Any]]
"""Every rank's value, by rank; each has to call it."""


class SharedMemoryTransport:
    """Of all ranks of a run, which run on one node."""

    name = "shared memory"

    def __init__(self, native: CDLL, file: int, rank: int, ranks: int, capacity: int) -> None:
        """`file` is the memory, opened, with this rank's lock held."""
        self._native, self._file, self._rank, self._turn = native, file, rank, 0
        memory = np.frombuffer(mmap.mmap(file, _size(ranks, capacity)), dtype=np.uint8)
        lines, slots = memory[: ranks * LINE], memory[ranks * LINE :]
        self._lines = lines.view(np.int64).reshape(ranks, LINE // 8)  # number, sizes
        self._slots = slots.reshape(SLOTS, ranks, -1)[:, :, :capacity]

    def slot(self) -> Bytes:
        mine: Bytes = self._slots[(self._turn + 1) % SLOTS, self._rank]
        return mine

    def exchange(self, size: int) -> Sequence[Bytes]:
        """Raises PeerLost where a rank ended, TimeoutError where one is silent for ten minutes."""
        assert size <= self._slots.shape[2]
        self._turn += 1
        now = self._turn % SLOTS
        self._lines[self._rank, 1 + now] = size
        self._native.hpcncf_publish(self._lines[self._rank].ctypes.data, self._turn)
        self._wait()
        sizes = self._lines[:, 1 + now].tolist()
        return [slot[:size] for slot, size in zip(self._slots[now], sizes, strict=True)]

    def _wait(self) -> None:
        until = time.monotonic() + TIMEOUT_S
        while True:
            missing = self._missing(LIVENESS_CHECK_S)
            if missing < 0:
                return
            # It may have sent its last message, and ended, since it was found missing.
            if not _is_locked(self._file, missing) and self._missing(0) == missing:
                raise PeerLost(missing)
            if time.monotonic() > until:
                raise TimeoutError(f"rank {missing} has sent nothing for {TIMEOUT_S:g} s")

    def _missing(self, patience_s: float) -> int:
        """The first rank whose message is not there after so long; -1 where all are."""
        rank: int = self._native.hpcncf_await(
            self._lines.ctypes.data, len(self._lines), self._turn, patience_s
        )
        return rank

    def close(self) -> None:
        """Messages that were returned stay readable; other ranks that still wait see it as lost."""
        os.close(self._file)


def join_shared_memory(
    rank: int, ranks: int, capacity: int, gather: Gather
) -> SharedMemoryTransport | None:
    """For messages of up to `capacity` bytes; None on every rank where one of them cannot: it is on
    another node or in a container of its own, memory is short, or engine native was not built."""
    native, file = _library(), None
    if rank == 0 and native:
        file = _allocate(_size(ranks, capacity))
    link = None if file is None else Path(f"/proc/{os.getpid()}/fd/{file}")
    # With a name that nobody else has: the same link may be another process's on another node.
    told = gather(link and (link, link.readlink()))[0]
    if rank > 0 and native and told:
        file = _opened(*told)
    if file is not None:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, rank)
    if all(gather(file is not None)) and native and file is not None:
        return SharedMemoryTransport(native, file, rank, ranks, capacity)
    if file is not None:
        os.close(file)
    return None


def _size(ranks: int, capacity: int) -> int:
    return ranks * LINE + SLOTS * ranks * -(-capacity // LINE) * LINE


def _library() -> CDLL | None:
    try:
        return load_library()
    except NotBuilt:
        return None


def _allocate(size: int) -> int | None:
    """Memory of which every byte is there: one that is not would end a process that writes it."""
    if size > MAX_BYTES:
        return None
    file = os.memfd_create(f"hpcncf-{secrets.token_hex(16)}")
    try:
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.close(file)
        return None
    return file


def _opened(link: Path, name: Path) -> int | None:
    try:
        return os.open(link, os.O_RDWR) if link.readlink() == name else None
    except OSError:
        return None


def _is_locked(file: int, rank: int) -> bool:
    """Whether the rank's process still has its lock."""
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, rank)
    except OSError:
        return True
    return False


def uses_nccl(device: torch.device) -> bool:
    """Whether the ranks' tensors go from GPU to GPU, as nccl's do."""
    return device.type == "cuda" and dist.get_backend() == "nccl"


def open_transport(place: Place, capacity: int, device: torch.device) -> Transport:
    """For messages of up to `capacity` bytes: through memory where the ranks share it, else over
    their group. Every rank of `place` has to call it."""
    assert place.world_size > 1
    if device.type == "cpu" and place.local_world_size == place.world_size:
        gather = partial(gather_objects, place=place)
        found = join_shared_memory(place.rank, place.world_size, capacity, gather)
        if found is not None:
            return found
    return GroupTransport(capacity)
