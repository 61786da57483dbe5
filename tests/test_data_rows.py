"""Holding rows out and drawing test negatives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.rows import Rows, distinct_pairs, draw_test_negatives, leave_one_out, numbered

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), min_size=1, max_size=60)
SEEDS = st.integers(0, 2**63 - 1)


def rows_of(pairs: list[tuple[int, int]], item_count: int = 40) -> Rows:
    """Rows whose only context column is the row's number, so that a row can be followed."""
    users, items = np.array(pairs, dtype=np.int32).T
    number = np.arange(len(pairs), dtype=np.float32)[:, None]
    return Rows(users, items, number, ["row"], np.arange(6), item_count)


@given(PAIRS, SEEDS)
def test_every_row_is_either_held_out_or_trained_on(
    pairs: list[tuple[int, int]], seed: int
) -> None:
    split = leave_one_out(rows_of(pairs), seed, 20)
    both = np.concatenate([split.train.context[:, 0], split.test.context[:, 0]])
    assert sorted(both) == list(range(len(pairs)))
    users, counts = np.unique([user for user, _ in pairs], return_counts=True)
    assert split.test.users.tolist() == users[counts > 1].tolist()
    for rows in (split.train, split.test):
        told = [pairs[int(at)] for at in rows.context[:, 0]]
        assert list(zip(rows.users.tolist(), rows.items.tolist(), strict=True)) == told


@given(PAIRS, SEEDS)
def test_a_test_negative_has_no_row_of_its_user_and_comes_once(
    pairs: list[tuple[int, int]], seed: int
) -> None:
    split = leave_one_out(rows_of(pairs), seed, 20)
    for user, drawn in zip(split.test.users, split.test_negatives, strict=True):
        assert len(set(drawn.tolist())) == 20
        assert not set(drawn.tolist()) & {item for owner, item in pairs if owner == user}
        assert 0 <= drawn.min() <= drawn.max() < 40


@given(PAIRS)
def test_distinct_pairs_are_each_users_items_sorted_and_once(pairs: list[tuple[int, int]]) -> None:
    users, items = np.array(pairs, dtype=np.int32).T
    indptr, positives = distinct_pairs(users, items, 6, 13)
    assert len(indptr) == 7
    for user in range(6):
        own = positives[indptr[user] : indptr[user + 1]].tolist()
        assert own == sorted({item for owner, item in pairs if owner == user})


def test_a_users_negatives_do_not_depend_on_who_else_is_tested() -> None:
    rows = rows_of([(user, item) for user in range(6) for item in (user, user + 1)])
    everybody = draw_test_negatives(rows, np.arange(6, dtype=np.int32), 7, 11)
    alone = draw_test_negatives(rows, np.array([4], dtype=np.int32), 7, 11)
    assert everybody[4].tolist() == alone[0].tolist()


def test_all_candidates_are_drawn_when_as_many_are_wanted() -> None:
    rows = rows_of([(0, 2), (0, 5)], item_count=10)
    drawn = draw_test_negatives(rows, np.array([0], dtype=np.int32), 1, 8)
    assert sorted(drawn[0].tolist()) == [0, 1, 3, 4, 6, 7, 8, 9]


def test_every_candidate_is_as_likely_as_every_other() -> None:
    rows = rows_of([(0, 0), (0, 1)], item_count=10)
    users = np.array([0], dtype=np.int32)
    drawn = np.concatenate([draw_test_negatives(rows, users, seed, 2)[0] for seed in range(2000)])
    counts = np.bincount(drawn, minlength=10)[2:]  # 500 expected each, deviation about 20
    assert counts.min() > 400
    assert counts.max() < 600


def test_another_seed_holds_out_other_rows() -> None:
    rows = rows_of([(user, item) for user in range(6) for item in range(10)])
    held = {tuple(leave_one_out(rows, seed, 5).test.items.tolist()) for seed in range(5)}
    assert len(held) == 5


def test_with_times_the_latest_row_is_held_out_and_of_equal_times_the_last() -> None:
    rows = rows_of([(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)])
    split = leave_one_out(rows, 1, 5, np.array([9, 30, 30, 8, 7]))
    assert split.test.items.tolist() == [3, 4]


def test_a_user_with_too_few_negatives_is_named_with_what_to_do() -> None:
    rows = numbered(np.array(["ann", "ann", "bob", "bob"]), np.array([1, 2, 3, 3]))
    with pytest.raises(DataError, match=r"user ann: needs 2 .* --test-negatives 1 or fewer"):
        leave_one_out(rows, 1, 2)


def test_users_and_items_are_numbered_in_the_order_of_their_names() -> None:
    rows = numbered(np.array(["b", "a", "b"]), np.array([30, 10, 20]))
    assert rows.users.tolist() == [1, 0, 1]
    assert rows.items.tolist() == [2, 0, 1]
    assert (rows.user_names.tolist(), rows.item_count) == (["a", "b"], 3)
