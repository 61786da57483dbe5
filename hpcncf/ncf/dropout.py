"""The random state that dropout draws from: begun anew each epoch on each rank, kept within one."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcncf.ncf import sampling


def begin(seed: int, epoch: int, rank: int) -> None:
    high, low, *_ = sampling.philox_block(seed, sampling.DROPOUT, epoch, rank, 0)
    torch.manual_seed(high << 32 | low)


def state(device: torch.device) -> Tensor:
    """What has been drawn so far, for `restore`."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def restore(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
