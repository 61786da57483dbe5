"""The held-out item's rank, counted as the definition says, and the means of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from make_runs import tiny
from torch import Tensor, nn

from hpcncf.ncf.data import prepared, synthetic
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.evaluate import Quality, evaluate
from hpcncf.rank.launcher import Place

CPU = torch.device("cpu")


class Table(nn.Module):
    """Scores written down for every user and item."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, users: Tensor, items: Tensor, context: Tensor) -> Tensor:
        assert len(users) == len(items) == len(context)
        return self.scores[users, items]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return tiny(tmp_path_factory.mktemp("data") / "tiny")


def one_user(data: Prepared) -> Prepared:
    """The same data with the first test row alone."""
    return replace(
        data,
        test_users=data.test_users[:1],
        test_items=data.test_items[:1],
        test_context=data.test_context[:1],
        test_negatives=data.test_negatives[:1],
    )


def quality_at(data: Prepared, ahead: int, tied: int = 0, value: float = 1.0) -> Quality:
    """Of one test row whose item has so many negatives ahead of it, and so many level with it."""
    one = one_user(data)
    scores = torch.zeros(data.manifest.users, data.manifest.items)
    user, item = int(one.test_users[0]), int(one.test_items[0])
    scores[user, item] = value
    scores[user, torch.tensor(one.test_negatives[0, :ahead].astype(np.int64))] = 2.0
    scores[user, torch.tensor(one.test_negatives[0, ahead : ahead + tied].astype(np.int64))] = value
    return evaluate(Table(scores), one, Place(), CPU, "sampled")


@pytest.mark.parametrize(
    ("ahead", "hr", "ndcg"),
    [(0, 1.0, 1.0), (1, 1.0, 1 / math.log2(3)), (9, 1.0, 1 / math.log2(11)), (10, 0.0, 0.0)],
)
def test_rank_gives_hit_gain_and_reciprocal(
    data: Prepared, ahead: int, hr: float, ndcg: float
) -> None:
    quality = quality_at(data, ahead)
    assert quality.hr10 == hr
    assert quality.ndcg10 == pytest.approx(ndcg)
    assert quality.mrr == pytest.approx(1 / (ahead + 1))


def test_ties_count_against_the_held_out_item(data: Prepared) -> None:
    assert quality_at(data, ahead=3, tied=4).mrr == pytest.approx(1 / 8)


def test_a_model_that_scores_nothing_is_no_hit(data: Prepared) -> None:
    assert quality_at(data, ahead=0, value=math.nan).mrr == pytest.approx(1 / 100)
    constant = Table(torch.zeros(data.manifest.users, data.manifest.items))
    assert evaluate(constant, data, Place(), CPU, "sampled").hr10 == 0.0


def test_full_ranking_is_the_loop_over_all_items(tmp_path: Path) -> None:
    # Several chunks: 500 users x 180 items are more pairs than are scored at once.
    synthetic.prepare(tmp_path / "wide", users=500, items=180, train_rows=9000, context=0)
    data = prepared.load(tmp_path / "wide")
    scores = torch.randn(500, 180, generator=torch.Generator().manual_seed(3))
    ranks = []
    for user, item in zip(data.test_users.tolist(), data.test_items.tolist(), strict=True):
        first, last = data.positives_indptr[user], data.positives_indptr[user + 1]
        seen = set(data.positives[first:last].tolist()) | {item}
        others = [other for other in range(180) if other not in seen]
        ranks.append(sum(bool(scores[user, other] >= scores[user, item]) for other in others))
    quality = evaluate(Table(scores), data, Place(), CPU, "full")
    assert quality.hr10 == pytest.approx(np.mean(np.array(ranks) < 10))
    assert quality.mrr == pytest.approx(np.mean(1 / (np.array(ranks) + 1)))


def test_unseen_pairs_have_a_figure_of_their_own(data: Prepared) -> None:
    scores = torch.zeros(data.manifest.users, data.manifest.items)
    unseen = data.test_unseen.tolist()
    for user, item, new in zip(data.test_users, data.test_items, unseen, strict=True):
        scores[int(user), int(item)] = -1.0 if new else 1.0
    quality = evaluate(Table(scores), data, Place(), CPU, "sampled")
    assert quality.hr10_unseen == 0.0
    assert quality.hr10 == pytest.approx(1 - np.mean(unseen))


def test_without_unseen_pairs_there_is_no_figure(data: Prepared) -> None:
    seen = replace(data, test_items=data.positives[data.positives_indptr[data.test_users]])
    table = Table(torch.zeros(data.manifest.users, data.manifest.items))
    assert evaluate(table, seen, Place(), CPU, "sampled").hr10_unseen is None


def test_evaluation_leaves_the_model_training(data: Prepared) -> None:
    table = Table(torch.zeros(data.manifest.users, data.manifest.items))
    evaluate(table, data, Place(), CPU, "sampled")
    assert table.training
