"""Which rows a step reads, each once: as many as there are, or so that no host has to know it."""

from __future__ import annotations

import torch
from torch import Tensor


def counted(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids, ascending, and where each of `ids` is among them. The host waits for how
    many there are."""
    found, where = torch.unique(ids, return_inverse=True)
    return found, where


def padded(ids: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """The same, but as many as `ids`: behind the distinct ones stands `padding`."""
    ascending, order = ids.sort()
    fresh = ascending != torch.cat([ascending[:1], ascending[:-1]])
    place = fresh.cumsum(0)
    # Equal ids write the same, so it does not matter which of them comes last.
    found = torch.full_like(ids, padding).index_copy_(0, place, ascending)
    return found, torch.empty_like(ids).index_copy_(0, order, place)
