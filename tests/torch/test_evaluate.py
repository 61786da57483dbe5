"""The means of ranks, as the definitions say; the ranks themselves: test_ranking."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.evaluate import Candidates, Quality, count_pairs, evaluate
from hpcncf.worker.environment import Place

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Written:
    """Ranks written down for every test row, given three at a time."""

    all: Tensor

    def ranks(
        self,
        data: Prepared,
        first: int,
        last: int,
        candidates: Candidates,  # noqa: ARG002  the ranks are known
    ) -> Iterator[Tensor]:
        assert len(self.all) == len(data.test_users)
        yield from torch.split(self.all[first:last], 3)


def one_row(data: Prepared) -> Prepared:
    """The same data with the first test row alone."""
    return replace(
        data,
        test_users=data.test_users[:1],
        test_items=data.test_items[:1],
        test_context=data.test_context[:1],
        test_negatives=data.test_negatives[:1],
    )


def quality(data: Prepared, ranks: Tensor, place: Place | None = None) -> Quality:
    return evaluate(Written(ranks), data, place or Place(), CPU, "sampled")


@pytest.mark.parametrize(
    ("rank", "hr", "ndcg"),
    [(0, 1.0, 1.0), (1, 1.0, 1 / math.log2(3)), (9, 1.0, 1 / math.log2(11)), (10, 0.0, 0.0)],
)
def test_a_rank_gives_hit_gain_and_reciprocal(
    data: Prepared, rank: int, hr: float, ndcg: float
) -> None:
    found = quality(one_row(data), torch.tensor([rank]))
    assert found.hr10 == hr
    assert found.ndcg10 == pytest.approx(ndcg)
    assert found.mrr == pytest.approx(1 / (rank + 1))


def test_all_rows_count_alike_whatever_parts_they_come_in(data: Prepared) -> None:
    ranks = torch.arange(len(data.test_users)) % 13
    found = quality(data, ranks)
    assert found.hr10 == pytest.approx(np.mean(ranks.numpy() < 10))
    assert found.mrr == pytest.approx(np.mean(1 / (ranks.numpy() + 1)))


def test_unseen_pairs_have_a_figure_of_their_own(data: Prepared) -> None:
    unseen = torch.from_numpy(data.test_unseen)
    found = quality(data, torch.where(unseen, 50, 0))
    assert found.hr10_unseen == 0.0
    assert found.hr10 == pytest.approx(1 - np.mean(data.test_unseen))


def test_without_unseen_pairs_there_is_no_figure(data: Prepared) -> None:
    seen = replace(data, test_items=data.positives[data.positives_indptr[data.test_users]])
    assert quality(seen, torch.zeros(len(data.test_users), dtype=torch.int64)).hr10_unseen is None


def test_how_much_is_done_is_reported(data: Prepared) -> None:
    got: list[float] = []
    ranks = torch.zeros(len(data.test_users), dtype=torch.int64)
    evaluate(Written(ranks), data, Place(), CPU, "sampled", got.append)
    assert got == sorted(got)
    assert (len(got), got[-1]) == (-(-len(ranks) // 3), 1.0)


def test_pairs_are_what_is_scored(data: Prepared) -> None:
    rows = data.manifest.test_rows
    assert count_pairs(data, "sampled") == rows * 100
    assert count_pairs(data, "full") == rows * 150
