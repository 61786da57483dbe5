"""How well the model ranks each user's held-out item: HR@10, NDCG@10 and MRR, leave-one-out.

The item's rank is the number of candidates that do not score strictly less, itself excepted: ties
count against it, and so does a score that is no number. With rank 0 the best, HR@10 is the share
of ranks below 10, NDCG@10 the mean of 1 / log2(rank + 2) where the rank is below 10 and 0
elsewhere, MRR the mean of 1 / (rank + 1) (He et al. 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hpcncf.ncf import sampling
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.rank.launcher import Place

CUTOFF = 10
PAIRS = 65_536  # scored at once: the widest layer's values stay near the cache


@dataclass(frozen=True)
class Quality:
    hr10: float
    ndcg10: float
    mrr: float
    hr10_unseen: float | None


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Prepared,
    place: Place,
    device: torch.device,
    candidates: Literal["sampled", "full"],
) -> Quality:
    """Of all test rows; the ranks share them. `full`: every item but the user's other training
    items, `sampled`: the stored negatives."""
    first, last = sampling.shard(0, len(data.test_users), place.rank, place.world_size)
    width = data.test_negatives.shape[1] + 1 if candidates == "sampled" else data.manifest.items
    rows = max(1, PAIRS // width)
    model.eval()
    found = [
        _ranks(model, data, device, candidates, at, min(at + rows, last))
        for at in range(first, last, rows)
    ]
    model.train()
    ranks = torch.cat(found) if found else torch.empty(0, dtype=torch.int64)
    return _quality(ranks, torch.tensor(np.asarray(data.test_unseen)[first:last]), place, device)


def _ranks(
    model: nn.Module,
    data: Prepared,
    device: torch.device,
    candidates: Literal["sampled", "full"],
    first: int,
    last: int,
) -> Tensor:
    """Ranks of test rows first to last; column 0 of `items` is the held-out one."""
    held_out = np.asarray(data.test_items[first:last], dtype=np.int64)[:, None]
    if candidates == "sampled":
        others = np.asarray(data.test_negatives[first:last], dtype=np.int64)
    else:
        others = np.tile(np.arange(data.manifest.items), (last - first, 1))
    items = torch.from_numpy(np.concatenate([held_out, others], axis=1)).to(device)
    scores = _scores(model, data, device, items, first, last)
    ahead = ~(scores[:, 1:] < scores[:, :1])
    if candidates == "full":
        ahead &= torch.from_numpy(_eligible(data, first, last)).to(device)
    return ahead.sum(dim=1).cpu()


def _scores(
    model: nn.Module, data: Prepared, device: torch.device, items: Tensor, first: int, last: int
) -> Tensor:
    rows, width = items.shape
    users = torch.tensor(np.asarray(data.test_users[first:last], dtype=np.int64), device=device)
    context = torch.tensor(np.asarray(data.test_context[first:last]), device=device)
    scores: Tensor = model(
        users.repeat_interleave(width), items.reshape(-1), context.repeat_interleave(width, dim=0)
    )
    return scores.reshape(rows, width)


def _eligible(
    data: Prepared, first: int, last: int
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """[row, item]: neither the held-out item itself nor one of the user's training items."""
    eligible = np.ones((last - first, data.manifest.items), dtype=np.bool_)
    for at, row in enumerate(range(first, last)):
        user = data.test_users[row]
        start, stop = data.positives_indptr[user], data.positives_indptr[user + 1]
        eligible[at, data.positives[start:stop]] = False
        eligible[at, data.test_items[row]] = False
    return eligible


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
