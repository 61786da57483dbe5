"""How ranks exchange bytes: each writes one message, and all read all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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
