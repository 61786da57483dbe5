"""How well the model ranks each user's held-out item: HR@10, NDCG@10 and MRR, leave-one-out.

The item's rank is the number of candidates that do not score strictly less, itself excepted: ties
count against it, and so does a score that is no number. With rank 0 the best, HR@10 is the share
of ranks below 10, NDCG@10 the mean of 1 / log2(rank + 2) where the rank is below 10 and 0
elsewhere, MRR the mean of 1 / (rank + 1) (He et al. 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hpcncf.ncf import sampling
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.ranking import Candidates
from hpcncf.rank.launcher import Place

CUTOFF = 10


@dataclass(frozen=True)
class Quality:
    hr10: float
    ndcg10: float
    mrr: float
    hr10_unseen: float | None


class Ranker(Protocol):
    """What evaluation needs of an engine."""

    def ranks(
        self, data: Prepared, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]: ...


def evaluate(
    ranker: Ranker,
    data: Prepared,
    place: Place,
    device: torch.device,
    candidates: Candidates,
    tell: Callable[[float], None] = lambda _: None,
) -> Quality:
    """Of all test rows; the ranks share them. `full`: every item but the user's other training
    items, `sampled`: the stored negatives. `tell` hears of the share that this rank has done."""
    first, last = sampling.shard(0, len(data.test_users), place.rank, place.world_size)
    ranks = torch.empty(last - first, dtype=torch.int64)
    done = 0
    for part in ranker.ranks(data, first, last, candidates):
        ranks[done : done + len(part)] = part
        done += len(part)
        tell(done / len(ranks))
    return _quality(ranks, torch.tensor(np.asarray(data.test_unseen)[first:last]), place, device)


def pairs(data: Prepared, candidates: Candidates) -> int:
    """How many an evaluation scores, over all ranks: each test row's candidates and its own item,
    or all items."""
    sampled = 1 + data.manifest.test_negatives
    return data.manifest.test_rows * (sampled if candidates == "sampled" else data.manifest.items)


def _quality(ranks: Tensor, unseen: Tensor, place: Place, device: torch.device) -> Quality:
    """The means over all ranks of the group."""
    hit = ranks < CUTOFF
    gain = torch.where(hit, 1 / torch.log2(ranks.double() + 2), 0.0)
    parts = [hit, gain, 1 / (ranks.double() + 1), torch.ones_like(hit), hit & unseen, unseen]
    sums = torch.stack([part.double().sum() for part in parts]).to(device)
    if place.world_size > 1:
        dist.all_reduce(sums)
    hits, gains, reciprocal, rows, hits_unseen, rows_unseen = sums.tolist()
    return Quality(
        hr10=hits / rows,
        ndcg10=gains / rows,
        mrr=reciprocal / rows,
        hr10_unseen=hits_unseen / rows_unseen if rows_unseen else None,
    )
