"""Which way the ranks of a run exchange messages."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from hpcncf.ncf import distributed
from hpcncf.ncf.sync import shared
from hpcncf.ncf.sync.group import Group
from hpcncf.ncf.sync.transport import Transport
from hpcncf.rank.launcher import Place


def stays_on_device(device: torch.device) -> bool:
    """Whether the ranks' tensors go from GPU to GPU, as nccl's do."""
    return device.type == "cuda" and dist.get_backend() == "nccl"


def transport(place: Place, capacity: int, device: torch.device) -> Transport:
    """For messages of up to `capacity` bytes: through memory where the ranks share it, else over
    their group. Every rank of `place` has to call it."""
    assert place.world_size > 1
    if device.type == "cpu" and place.local_world_size == place.world_size:
        gather = partial(distributed.gathered, place=place)
        found = shared.joined(place.rank, place.world_size, capacity, gather)
        if found is not None:
            return found
    return Group(capacity)
