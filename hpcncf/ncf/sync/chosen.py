"""Which way the ranks of a run exchange messages."""

from __future__ import annotations

import torch

from hpcncf.ncf.sync.group import Group
from hpcncf.ncf.sync.transport import Transport
from hpcncf.rank.launcher import Place


def transport(place: Place, capacity: int, device: torch.device) -> Transport:
    """For messages of up to `capacity` bytes; every rank of `place` has to call it."""
    assert place.world_size > 1
    return Group(capacity, device)
