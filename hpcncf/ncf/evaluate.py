"""HR@10, NDCG@10 and MRR of held-out items, leave one out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from hpcncf.data import epoch_order
from hpcncf.data.prepared import PreparedData
from hpcncf.launcher.environment import Place
from hpcncf.ncf.model import NeuMF

# The first layer is linear in its input. An item's share of it is computed once for all test rows,
# a row's share (user and context) once for all of its candidates. A pair costs their sum and the
# layers above.
#
# Equal pairs get equal scores, so that ties are exact: the held-out item goes through the same
# products as its candidates, and all products are of whole blocks. torch sums the last rows or
# columns of a product in another order if their number is no multiple of its kernels' width.

Candidates = Literal["sampled", "full"]

PAIR_MULTIPLE = 16  # a block's pairs, and
COLUMN_MULTIPLE = 8  # a layer's numbers are a multiple of these
CPU_NUMBERS_PER_THREAD = 2**18  # of the widest layer at once: 1 MiB stays near a core
GPU_NUMBERS = 2**25
MAX_SCORES = 2**22  # at once, if a test row has one for each item


@torch.no_grad()
def rank_test_rows(
    model: NeuMF, data: PreparedData, first: int, last: int, candidates: Candidates
) -> Iterator[Tensor]:
    """Yield, in parts [n] of int64, the held-out items' ranks in test rows `first` to `last`.

    A rank is the number of candidates that do not score strictly less than the held-out item.
    With `full`, candidates are all items except the user's other training items.
    """
    scorer = Scorer(model)
    sampled = candidates == "sampled"
    if sampled:
        each = scorer.pairs_at_once // (1 + data.test_negatives.shape[1])
        step = max(1, each // PAIR_MULTIPLE) * PAIR_MULTIPLE
    else:
        step = max(1, min(PAIR_MULTIPLE, MAX_SCORES // scorer.items))
    for at in range(first, last, step):
        rows = np.minimum(np.arange(at, at + step), last - 1)  # the last row fills the last block
        users, context = data.test_users[rows], data.test_context[rows]
        parts = scorer.row_parts(torch.from_numpy(users), torch.from_numpy(context))
        if sampled:
            items = np.concatenate([data.test_items[rows, None], data.test_negatives[rows]], axis=1)
            scores = scorer.score_items(torch.from_numpy(items), *parts)
            ahead = ~(scores[:, 1:] < scores[:, :1])
        else:
            ahead = _ahead_of_all(scorer.score_all(*parts), data, rows)
        yield ahead.sum(dim=1)[: last - at].cpu()


def _ahead_of_all(scores: Tensor, data: PreparedData, rows: NDArray[np.int64]) -> Tensor:
    """Mask [rows, items] of candidates that do not score less than the held-out item.

    The user's training items and the held-out item itself are never marked.
    """
    own = torch.from_numpy(data.test_items[rows].astype(np.int64)).to(scores.device)[:, None]
    ahead = ~(scores < scores.gather(1, own))
    bounds = data.positives_indptr
    known = [data.positives[bounds[user] : bounds[user + 1]] for user in data.test_users[rows]]
    of_row = np.repeat(np.arange(len(rows)), [len(each) for each in known])
    ahead[torch.from_numpy(of_row), torch.from_numpy(np.concatenate(known))] = False
    return ahead.scatter_(1, own, False)


class Scorer:
    """Scores pairs with a copy of the model's layers, without dropout.

    It holds [items, first layer + MF part] numbers, about as many as the model has for its items.
    """

    def __init__(self, model: NeuMF) -> None:
        first, *above = [each for each in model.MLP_layers if isinstance(each, nn.Linear)]
        mlp, mf = model.MLP_Embedding_User.embedding_dim, model.MF_Embedding_User.embedding_dim
        weight, output = first.weight.T, model.predict_layer.weight[0]
        self._users = (model.MLP_Embedding_User, model.MF_Embedding_User)
        self._of_shared = _pad(torch.cat([weight[:mlp], weight[2 * mlp :]]))
        self._bias = _pad(first.bias)
        self._above = [(_pad(each.weight.T, COLUMN_MULTIPLE), _pad(each.bias)) for each in above]
        self._of_mf, self._of_hidden = _pad(output[:mf]), _pad(output[mf:])
        self._last_bias = model.predict_layer.bias.detach()
        self.device, self.items = weight.device, model.MF_Embedding_Item.num_embeddings
        biases = [self._bias, *(bias for _, bias in self._above)]
        at_once = (
            GPU_NUMBERS
            if self.device.type == "cuda"
            else CPU_NUMBERS_PER_THREAD * torch.get_num_threads()
        )
        self.pairs_at_once = at_once // max(map(len, [*biases, self._of_mf]))
        """Pairs at once, about."""
        self._mf_items = _pad(model.MF_Embedding_Item.weight, PAIR_MULTIPLE)
        self._halves = self._mf_items.new_empty(len(self._mf_items), len(self._bias))
        of_item = _pad(weight[mlp : 2 * mlp], COLUMN_MULTIPLE)
        for block in equal_blocks(len(self._halves), self.pairs_at_once):
            embeddings = _pad(model.MLP_Embedding_Item.weight[block], PAIR_MULTIPLE)
            torch.mm(embeddings, of_item, out=self._halves[block])

    def row_parts(self, users: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Shares of test rows in layer 1 and in the MF products, equal for all candidates.

        They are [rows, 1, width of the layer] and [rows, 1, width of the MF part].
        """
        mlp, mf = (table(users.to(self.device)) for table in self._users)
        shared = torch.cat([mlp, context.to(mlp)], dim=1)
        return torch.addmm(self._bias, shared, self._of_shared)[:, None], _pad(mf)[:, None]

    def score_items(self, items: Tensor, half: Tensor, mf: Tensor) -> Tensor:
        """Score items [rows, n] for their rows; rows must be a multiple of PAIR_MULTIPLE."""
        hidden, products = (_gather_rows(each, items) for each in (self._halves, self._mf_items))
        return self._scores(hidden.add_(half), products.mul_(mf))

    def score_all(self, half: Tensor, mf: Tensor) -> Tensor:
        """Score all items for each row; returns [rows, items]."""
        scores = half.new_empty(len(half), len(self._halves))
        for block in equal_blocks(len(self._halves), self.pairs_at_once // len(half)):
            hidden, products = self._halves[block] + half, self._mf_items[block] * mf
            scores[:, block] = self._scores(hidden, products)
        return scores[:, : self.items]

    def _scores(self, hidden: Tensor, products: Tensor) -> Tensor:
        """Compute scores [rows, n] from layer 1 before its ReLU and the MF products.

        Both inputs are overwritten.
        """
        shape = hidden.shape[:2]
        values = hidden.flatten(0, 1).relu_()
        for weight, bias in self._above:
            values = torch.addmm(bias, values, weight).relu_()
        logits = torch.addmv(self._last_bias, values, self._of_hidden)
        return logits.addmv_(products.flatten(0, 1), self._of_mf).view(shape)


def _gather_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Return table[ids].

    On a CPU numpy is a third faster than torch, and evaluation spends most of its time here.
    """
    if table.device.type == "cpu":
        return torch.from_numpy(table.numpy().take(ids.numpy(), axis=0))
    return table.index_select(0, ids.reshape(-1).to(table.device)).view(*ids.shape, -1)


def equal_blocks(count: int, most: int) -> Iterator[slice]:
    """Yield slices of one size, at most about `most`, that cover `count`.

    `count` must be a multiple of PAIR_MULTIPLE. The last slice may overlap the one before.
    """
    number = -(-count // max(most, PAIR_MULTIPLE))
    size = -(-count // number)
    size += -size % PAIR_MULTIPLE
    return (slice(at, at + size) for at in (min(n * size, count - size) for n in range(number)))


def _pad(values: Tensor, rows: int = 1) -> Tensor:
    """Copy a tensor, padded with zeros to whole blocks.

    Columns are padded to a multiple of COLUMN_MULTIPLE, rows of a matrix to one of `rows`.
    """
    columns = -values.shape[-1] % COLUMN_MULTIPLE
    below = [0, -len(values) % rows] if values.dim() == 2 else []
    return pad(values.detach(), (0, columns, *below)).contiguous()


# The item's rank is the number of other candidates that do not score strictly less: ties count
# against it, and so do NaN scores. With rank 0 the best, HR@10 is the share of ranks below 10,
# NDCG@10 the mean of 1 / log2(rank + 2) for ranks below 10 and 0 for others, MRR the mean of
# 1 / (rank + 1) (He et al. 2017).

CUTOFF = 10


@dataclass(frozen=True)
class Quality:
    hr10: float
    ndcg10: float
    mrr: float
    hr10_unseen: float | None


class Ranker(Protocol):
    """The part of an engine that evaluation needs."""

    def ranks(
        self, data: PreparedData, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]: ...


def evaluate(
    ranker: Ranker,
    data: PreparedData,
    place: Place,
    device: torch.device,
    candidates: Candidates,
    report: Callable[[float], None] = lambda _: None,
) -> Quality:
    """Compute HR@10, NDCG@10 and MRR over all test rows, which the ranks share.

    Candidates are the stored negatives (`sampled`) or all items except the user's other
    training items (`full`). `report` is called with the share of this rank's rows that are
    done.
    """
    first, last = epoch_order.rank_shard(0, len(data.test_users), place.rank, place.world_size)
    ranks = torch.empty(last - first, dtype=torch.int64)
    done = 0
    for part in ranker.ranks(data, first, last, candidates):
        ranks[done : done + len(part)] = part
        done += len(part)
        report(done / len(ranks))
    return _quality(ranks, torch.tensor(np.asarray(data.test_unseen)[first:last]), place, device)


def count_pairs(data: PreparedData, candidates: Candidates) -> int:
    """Number of user-item pairs that an evaluation scores, over all ranks.

    For each test row these are its candidates and the held-out item, or all items.
    """
    sampled = 1 + data.manifest.test_negatives
    return data.manifest.test_rows * (sampled if candidates == "sampled" else data.manifest.items)


def _quality(ranks: Tensor, unseen: Tensor, place: Place, device: torch.device) -> Quality:
    """Average the metrics of all ranks' test rows."""
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
