"""Ranks of every engine are those of the model's own forward; the means follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from make_runs import planned, trainer
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.data.arrays import build_buckets, row_dtype
from hpcncf.data.manifest import Manifest
from hpcncf.data.prepared import PreparedData
from hpcncf.job.spec import Model, Training
from hpcncf.launcher.environment import Place
from hpcncf.native.builds import installed_builds
from hpcncf.ncf import evaluate
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.engines import base
from hpcncf.ncf.evaluate import Candidates, Quality, count_pairs
from hpcncf.ncf.model import NeuMF, initial_model
from hpcncf.ncf.step_clock import StepClock


@st.composite
def cases(draw: st.DrawFn) -> tuple[Model, PreparedData]:
    """Any widths of layers, and data of any shape: one item, all items known, no negatives."""
    width = st.integers(1, 37)
    sizes = Model(
        gmf_width=draw(st.integers(1, 19)),
        mlp_width=draw(width),
        layers=tuple(draw(st.lists(width, min_size=1, max_size=4))),
        dropout=draw(st.sampled_from([0.0, 0.5])),
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    users, items = draw(st.integers(1, 5)), draw(st.integers(1, 90))
    rows, context = draw(st.integers(1, 40)), draw(st.integers(0, 5))
    share = draw(st.sampled_from([0.0, 0.3, 1.0]))
    known = [np.flatnonzero(random.random(items) < share) for _ in range(users)]
    return sizes, made(random, known, items, rows, context, draw(st.integers(0, 120)))


def made(
    random: np.random.Generator,
    known: list[NDArray[Any]],
    items: int,
    rows: int,
    context: int,
    negatives: int,
) -> PreparedData:
    """Test rows of users with these training items; negatives are any but the held-out item."""
    own = random.integers(items, size=rows)
    others = (own[:, None] + random.integers(1, max(items, 2), size=(rows, negatives))) % items
    lengths = [len(each) for each in known]
    nothing = ("rows", "train_rows", "train_pairs", "test_negatives", "small_columns")
    positives = np.concatenate(known).astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    bounds, table = build_buckets(indptr, positives)
    return PreparedData(
        Manifest(
            **dict.fromkeys(nothing, 0),
            key="",
            dataset="synthetic",
            title="",
            source={},
            options={},
            users=len(known),
            items=items,
            test_rows=rows,
            context_columns=[str(number) for number in range(context)],
            buckets=len(table),
        ),
        train_rows=np.empty(0, row_dtype(context, 0)),
        test_users=random.integers(len(known), size=rows).astype(np.int32),
        test_items=own.astype(np.int32),
        test_context=random.integers(-2, 3, size=(rows, context)).astype(np.float32),
        test_negatives=others.astype(np.int32),
        positives_indptr=indptr,
        positives=positives,
        buckets_indptr=bounds,
        buckets=table,
    )


def whole_numbers(sizes: Model, data: PreparedData, seed: int = 1) -> NeuMF:
    """Sums of its products are exact in any order, and many scores are equal."""
    model = NeuMF(data.manifest.users, data.manifest.items, data.test_context.shape[1], sizes)
    random = torch.Generator().manual_seed(seed)
    for each in model.parameters():
        each.data = torch.randint(-1, 2, each.shape, generator=random).float()
    return model


def ranks(model: NeuMF, data: PreparedData, candidates: Candidates) -> list[int]:
    parts = list(evaluate.rank_test_rows(model, data, 0, data.manifest.test_rows, candidates))
    return torch.cat(parts).tolist()


@torch.no_grad()
def scores_of_pairs(model: NeuMF, data: PreparedData, row: int, items: NDArray[Any]) -> Tensor:
    model.eval()
    users = torch.full((len(items),), int(data.test_users[row]))
    context = torch.tensor(data.test_context[row]).to(model.predict_layer.weight)
    scores: Tensor = model(users, torch.from_numpy(items), context.expand(len(items), -1))
    return scores


def others(data: PreparedData, row: int, candidates: Candidates) -> NDArray[Any]:
    """The candidates of a test row, by the definition."""
    if candidates == "sampled":
        return np.asarray(data.test_negatives[row], np.int64)
    first, last = data.positives_indptr[data.test_users[row] :][:2]
    known = {*data.positives[first:last].tolist(), int(data.test_items[row])}
    return np.array([each for each in range(data.manifest.items) if each not in known], np.int64)


def by_forward(model: NeuMF, data: PreparedData, candidates: Candidates) -> list[int]:
    """Pair by pair."""
    found = []
    for row in range(data.manifest.test_rows):
        own = data.test_items[row : row + 1].astype(np.int64)
        items = np.concatenate([own, others(data, row, candidates)])
        scores = scores_of_pairs(model, data, row, items)
        found.append(sum(not bool(score < scores[0]) for score in scores[1:]))
    return found


BOTH = pytest.mark.parametrize("candidates", ["sampled", "full"])


@BOTH
@given(case=cases(), seed=st.integers(0, 99))
def test_ranks_are_those_of_scoring_each_pair(
    candidates: Candidates, case: tuple[Model, PreparedData], seed: int
) -> None:
    sizes, data = case
    model = whole_numbers(sizes, data, seed)
    assert ranks(model, data, candidates) == by_forward(model, data, candidates)


@BOTH
@given(case=cases(), seed=st.integers(0, 99))
def test_a_score_that_is_no_number_counts_against_the_item(
    candidates: Candidates, case: tuple[Model, PreparedData], seed: int
) -> None:
    sizes, data = case
    model = whole_numbers(sizes, data, seed)
    model.MLP_Embedding_Item.weight.data[::3, 0] = torch.nan
    model.MF_Embedding_User.weight.data[3:, -1] = torch.nan
    assert ranks(model, data, candidates) == by_forward(model, data, candidates)


@BOTH
@given(case=cases(), seed=st.integers(0, 99))
def test_items_that_are_alike_tie_whatever_is_rounded(
    candidates: Candidates, case: tuple[Model, PreparedData], seed: int
) -> None:
    sizes, data = case
    torch.manual_seed(seed)
    model = NeuMF(data.manifest.users, data.manifest.items, data.test_context.shape[1], sizes)
    for table in (model.MF_Embedding_Item, model.MLP_Embedding_Item):
        table.weight.data[:] = torch.randn(table.embedding_dim)
    all_ahead = [len(others(data, row, candidates)) for row in range(data.manifest.test_rows)]
    assert ranks(model, data, candidates) == all_ahead


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@BOTH
def test_many_blocks_are_as_one(candidates: Candidates, kind: torch.dtype) -> None:
    # 2^18 numbers of the widest layer at once are 64 pairs here.
    sizes, random = Model(layers=(4096, 3)), np.random.default_rng(1)
    known = [random.choice(300, each, replace=False) for each in (0, 1, 299, 300)]
    data = made(random, known, items=300, rows=40, context=2, negatives=7)
    model = whole_numbers(sizes, data).to(kind)
    assert ranks(model, data, candidates) == by_forward(model, data, candidates)


@pytest.mark.parametrize(("count", "most"), [(16, 1), (96, 40), (160, 64), (1008, 100), (48, 500)])
def test_blocks_are_whole_and_leave_nothing_out(count: int, most: int) -> None:
    found = list(evaluate.equal_blocks(count, most))
    assert len({each.stop - each.start for each in found}) == 1
    assert all((each.stop - each.start) % evaluate.PAIR_MULTIPLE == 0 for each in found)
    assert {at for each in found for at in range(each.start, each.stop)} == set(range(count))


NEEDS_NATIVE = pytest.mark.skipif(not installed_builds(), reason="engine native was not built here")
ENGINES = ["reference", "rowwise", pytest.param("native", marks=NEEDS_NATIVE)]


def engine_ranks(of: base.Engine, data: PreparedData, candidates: Candidates) -> list[int]:
    found: list[int] = torch.cat(list(of.ranks(data, 0, len(data.test_users), candidates))).tolist()
    return found


@BOTH
@pytest.mark.parametrize("name", ENGINES[1:])
@given(case=cases(), seed=st.integers(0, 99))
def test_an_engine_ranks_as_scoring_each_pair_does(
    name: Any, candidates: Candidates, case: tuple[Model, PreparedData], seed: int
) -> None:
    sizes, data = case
    # A user with all items has no negatives: no engine can train on that.
    assume(max(np.diff(data.positives_indptr)) < data.manifest.items)
    sizes = sizes.model_copy(update={"dropout": 0.0})
    net, training = whole_numbers(sizes, data, seed), Training(engine=name)
    expected = by_forward(net, data, candidates)
    schedule = Schedule(data.manifest.train_rows, 256)
    ground = base.EngineInputs(data, sizes, schedule, threads=1)
    made = base.build_engine(net, training, 1, torch.device("cpu"), StepClock(1, 1), ground)
    assert engine_ranks(made, data, candidates) == expected


@pytest.mark.parametrize("name", ENGINES)
def test_what_is_ranked_is_what_training_settled(name: str, folder: Path, tmp_path: Path) -> None:
    """Rows that the last steps left behind are caught up: the model alone ranks alike."""
    run = planned(folder, engine=name, evaluation="full", max_steps=70)
    trained = trainer(run, tmp_path)
    trained.train()
    alone = initial_model(trained.data.manifest, Model(), 1)
    alone.load_state_dict(trained.model.state_dict())
    by_model = by_forward(alone, trained.data, "full")
    by_engine = engine_ranks(trained.engine, trained.data, "full")
    assert sum(mine != its for mine, its in zip(by_engine, by_model, strict=True)) <= 1
    assert trained.record().epochs[-1].mrr == pytest.approx(
        sum(1 / (rank + 1) for rank in by_engine) / len(by_engine)
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@BOTH
def test_a_gpu_ranks_as_a_cpu_does(candidates: Candidates) -> None:
    random = np.random.default_rng(1)
    data = made(random, [random.permutation(700)[:9]] * 5, 700, rows=300, context=3, negatives=50)
    model = whole_numbers(Model(), data)
    expected = ranks(model, data, candidates)
    assert ranks(model.to("cuda"), data, candidates) == expected


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Written:
    """Ranks written down for every test row, given three at a time."""

    all: Tensor

    def ranks(
        self,
        data: PreparedData,
        first: int,
        last: int,
        candidates: Candidates,  # noqa: ARG002  the ranks are known
    ) -> Iterator[Tensor]:
        assert len(self.all) == len(data.test_users)
        yield from torch.split(self.all[first:last], 3)


def one_row(data: PreparedData) -> PreparedData:
    """The same data with the first test row alone."""
    return replace(
        data,
        test_users=data.test_users[:1],
        test_items=data.test_items[:1],
        test_context=data.test_context[:1],
        test_negatives=data.test_negatives[:1],
    )


def quality(data: PreparedData, ranks: Tensor, place: Place | None = None) -> Quality:
    return evaluate.evaluate(Written(ranks), data, place or Place(), CPU, "sampled")


@pytest.mark.parametrize(
    ("rank", "hr", "ndcg"),
    [(0, 1.0, 1.0), (1, 1.0, 1 / math.log2(3)), (9, 1.0, 1 / math.log2(11)), (10, 0.0, 0.0)],
)
def test_a_rank_gives_hit_gain_and_reciprocal(
    data: PreparedData, rank: int, hr: float, ndcg: float
) -> None:
    found = quality(one_row(data), torch.tensor([rank]))
    assert found.hr10 == hr
    assert found.ndcg10 == pytest.approx(ndcg)
    assert found.mrr == pytest.approx(1 / (rank + 1))


def test_all_rows_count_alike_whatever_parts_they_come_in(data: PreparedData) -> None:
    ranks = torch.arange(len(data.test_users)) % 13
    found = quality(data, ranks)
    assert found.hr10 == pytest.approx(np.mean(ranks.numpy() < 10))
    assert found.mrr == pytest.approx(np.mean(1 / (ranks.numpy() + 1)))


def test_unseen_pairs_have_a_figure_of_their_own(data: PreparedData) -> None:
    unseen = torch.from_numpy(data.test_unseen)
    found = quality(data, torch.where(unseen, 50, 0))
    assert found.hr10_unseen == 0.0
    assert found.hr10 == pytest.approx(1 - np.mean(data.test_unseen))


def test_without_unseen_pairs_there_is_no_figure(data: PreparedData) -> None:
    seen = replace(data, test_items=data.positives[data.positives_indptr[data.test_users]])
    assert quality(seen, torch.zeros(len(data.test_users), dtype=torch.int64)).hr10_unseen is None


def test_how_much_is_done_is_reported(data: PreparedData) -> None:
    got: list[float] = []
    ranks = torch.zeros(len(data.test_users), dtype=torch.int64)
    evaluate.evaluate(Written(ranks), data, Place(), CPU, "sampled", got.append)
    assert got == sorted(got)
    assert (len(got), got[-1]) == (-(-len(ranks) // 3), 1.0)


def test_pairs_are_what_is_scored(data: PreparedData) -> None:
    rows = data.manifest.test_rows
    assert count_pairs(data, "sampled") == rows * 100
    assert count_pairs(data, "full") == rows * 150
