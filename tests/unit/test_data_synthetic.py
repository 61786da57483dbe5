"""Made data: exact counts, the same for the same seed, and worth learning from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.data import synthetic
from hpcncf.data.manifest import DataError, Manifest
from hpcncf.data.prepared import load_prepared
from hpcncf.data.synthetic import SHAPES, Shape, column_names, generate


@given(
    st.integers(1, 20),
    st.integers(1, 80),
    st.integers(0, 300),
    st.integers(0, 22),
    st.integers(0, 2**63 - 1),
)
def test_counts_are_exact_and_every_user_and_item_occurs(
    users: int, items: int, more: int, context: int, seed: int
) -> None:
    rows = max(users, items) + more
    split = generate(Shape(users, items, rows, context), seed, 0)
    assert len(split.train) == rows
    assert set(split.train.users.tolist()) == set(range(users))
    assert set(split.train.items.tolist()) == set(range(items))
    assert split.test.users.tolist() == list(range(users))
    assert split.train.context.shape == (rows, context)
    assert len(column_names(context)) == context
    assert split.train.context.min(initial=0) >= 0
    assert split.train.context.max(initial=0) <= 1


def test_a_like_has_the_shape_it_names(tmp_path: Path) -> None:
    made = synthetic.prepare_synthetic_like(tmp_path / "data", "frappe").manifest
    counts = (made.users, made.items, made.rows, made.train_rows, made.test_rows)
    assert counts == (654, 1_127, 84_385, 83_731, 654)
    assert (len(made.context_columns), made.parameters) == (21, 74_673)
    assert made.title.startswith("Synthetic data of Frappe's shape (not the real data): 84,385")
    assert load_prepared(tmp_path / "data").test_unseen.mean() > 0.95


def test_the_yelp_shape_has_the_forums_parameters() -> None:
    shape = SHAPES["yelp"]
    reported = Manifest(
        key="",
        dataset="synthetic",
        title="",
        source={},
        options={},
        users=shape.users,
        items=shape.items,
        rows=shape.train_rows + shape.users,
        train_rows=shape.train_rows,
        train_pairs=0,
        test_rows=shape.users,
        context_columns=column_names(shape.context),
        small_columns=0,
        buckets=shape.users,
        test_negatives=99,
    )
    assert reported.parameters == 12_453_873
    assert (shape.train_rows, 3 + shape.context) == (3_647_614, 24)


def test_popularity_is_uneven_and_users_keep_to_their_clusters() -> None:
    split = generate(Shape(200, 400, 20_000, 5), 3, 20)
    popularity = np.sort(np.bincount(split.train.items))[::-1]
    assert popularity[:40].sum() > 0.4 * 20_000  # a tenth of the items, evenly it were 0.1
    pairs = np.unique(split.train.users.astype(np.int64) * 400 + split.train.items)
    assert len(pairs) < 10_000  # independent of the user, about 15,000 would differ


def test_the_context_says_which_items_a_user_is_after() -> None:
    split = generate(Shape(50, 400, 20_000, 5), 3, 20)
    users, items, mood = split.train.users, split.train.items, split.train.context[:, 0] > 0.5
    shared = total = 0
    for user in range(50):
        first = set(items[(users == user) & mood].tolist())
        second = set(items[(users == user) & ~mood].tolist())
        shared += len(first & second)
        total += len(first | second)
    assert shared / total < 0.3


def test_too_few_rows_for_every_user_and_item_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--rows 50 or more"):
        synthetic.prepare_synthetic(tmp_path / "data", users=10, items=50, train_rows=49)
    assert list(tmp_path.iterdir()) == []


def test_a_shape_that_no_memory_holds_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not enough memory"):
        synthetic.prepare_synthetic(
            tmp_path / "data", users=10, items=300, train_rows=1000, context=10**15
        )
    assert not list(tmp_path.iterdir())
