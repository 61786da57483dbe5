"""Rows are held out and test negatives drawn, in slices that do not change the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcncf.ncf import sampling
from hpcncf.ncf.data import arrays
from hpcncf.ncf.data import split as parts_of_pairs
from hpcncf.ncf.data.arrays import (
    SLICE_ROWS,
    SLOTS,
    ColumnFile,
    Int64s,
    Rows,
    Sliced,
    bucket_of,
    is_positive,
    items_by_user,
    number_rows,
    unpack_context,
)
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.split import (
    SplitCounts,
    choose_test_rows,
    draw_test_negatives,
    leave_one_out,
    user_counts,
)

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), min_size=1, max_size=60)
SEEDS = st.integers(0, 2**63 - 1)


def rows_of(pairs: list[tuple[int, int]], item_count: int = 40) -> Rows:
    """Rows whose only context column is the row's number, so that a row can be followed."""
    users, items = np.array(pairs, dtype=np.int32).T
    number = np.arange(len(pairs), dtype=np.float32)[:, None]
    return Rows(users, items, number, ["row"], np.arange(6), item_count)


def named(users: list[str], items: list[int]) -> Rows:
    none = np.empty((len(users), 0), np.float32)
    return number_rows(np.array(users), np.array(items), none, [])


def split(
    rows: Rows, seed: int, negatives: int, times: Sliced | None = None
) -> tuple[SplitCounts, Callable[[str], NDArray[Any]]]:
    """The counts, and what was written, by name."""
    with TemporaryDirectory() as folder:
        counts = leave_one_out(Path(folder), rows, seed, negatives, times)
        arrays = {path.stem: np.load(path) for path in Path(folder).iterdir()}
        assert len(arrays) == 9
        rows = arrays["train_rows"]
        arrays |= {f"train_{name}s": rows[name] for name in ("user", "item")}
        arrays["train_context"] = unpack_context(rows)
    return counts, arrays.__getitem__


@given(PAIRS, SEEDS)
def test_every_row_is_either_held_out_or_trained_on(
    pairs: list[tuple[int, int]], seed: int
) -> None:
    counts, array = split(rows_of(pairs), seed, 20)
    both = np.concatenate([array("train_context")[:, 0], array("test_context")[:, 0]])
    assert sorted(both) == list(range(len(pairs)))
    users, times = np.unique([user for user, _ in pairs], return_counts=True)
    assert array("test_users").tolist() == users[times > 1].tolist()
    assert (counts.train_rows, counts.test_rows) == (len(array("train_users")), (times > 1).sum())
    for part in ("train", "test"):
        reported = [pairs[int(at)] for at in array(f"{part}_context")[:, 0]]
        found = array(f"{part}_users").tolist(), array(f"{part}_items").tolist()
        assert list(zip(*found, strict=True)) == reported


@given(PAIRS, SEEDS)
def test_a_test_negative_has_no_row_of_its_user_and_comes_once(
    pairs: list[tuple[int, int]], seed: int
) -> None:
    _, array = split(rows_of(pairs), seed, 20)
    for user, drawn in zip(array("test_users"), array("test_negatives"), strict=True):
        assert len(set(drawn.tolist())) == 20
        assert not set(drawn.tolist()) & {item for owner, item in pairs if owner == user}
        assert 0 <= drawn.min() <= drawn.max() < 40


@given(PAIRS)
def test_distinct_pairs_are_each_users_items_sorted_and_once(pairs: list[tuple[int, int]]) -> None:
    indptr, positives = items_by_user(rows_of(pairs, item_count=13))
    assert len(indptr) == 7
    for user in range(6):
        own = positives[indptr[user] : indptr[user + 1]].tolist()
        assert own == sorted({item for owner, item in pairs if owner == user})


@given(PAIRS, PAIRS)
def test_whether_a_user_has_an_item_is_found(
    pairs: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    indptr, positives = items_by_user(rows_of(pairs, item_count=13))
    found = is_positive(positives, indptr, *np.array(asked, dtype=np.int32).T)
    assert found.tolist() == [pair in pairs for pair in asked]


def test_a_users_negatives_do_not_depend_on_who_else_is_tested() -> None:
    rows = rows_of([(user, item) for user in range(6) for item in (user, user + 1)])
    everybody = draw_test_negatives(rows, np.arange(6, dtype=np.int32), 7, 11)
    alone = draw_test_negatives(rows, np.array([4], dtype=np.int32), 7, 11)
    assert everybody[4].tolist() == alone[0].tolist()


def test_all_candidates_are_drawn_when_as_many_are_wanted() -> None:
    rows = rows_of([(0, 2), (0, 5)], item_count=10)
    drawn = draw_test_negatives(rows, np.array([0], dtype=np.int32), 1, 8)
    assert sorted(drawn[0].tolist()) == [0, 1, 3, 4, 6, 7, 8, 9]


def test_a_user_with_all_items_but_one_gets_that_one_and_one_with_one_gets_all_others() -> None:
    rows = rows_of([*((0, item) for item in range(9)), (1, 4), (1, 4)], item_count=10)
    _, array = split(rows, 1, 1)
    assert array("test_negatives")[0].tolist() == [9]
    other = draw_test_negatives(rows, np.array([1], dtype=np.int32), 1, 9)
    assert sorted(other[0].tolist()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_every_candidate_is_as_likely_as_every_other() -> None:
    rows = rows_of([(0, 0), (0, 1)], item_count=10)
    users = np.array([0], dtype=np.int32)
    drawn = np.concatenate([draw_test_negatives(rows, users, seed, 2)[0] for seed in range(2000)])
    counts = np.bincount(drawn, minlength=10)[2:]  # 500 expected each, deviation about 20
    assert counts.min() > 400
    assert counts.max() < 600


@pytest.mark.parametrize("part_rows", [1, 40, 1 << 21])
def test_each_user_has_buckets_of_their_own_positives_whatever_the_parts(
    monkeypatch: pytest.MonkeyPatch, part_rows: int
) -> None:
    """Of users without rows, first, between others and last, of one with few and one with many."""
    many = np.random.default_rng(2).choice(60_000, 300, replace=False).tolist()
    owned = {1: [7, 7, 9], 2: many, 4: [*range(31_000, 31_040)], 5: [0]}
    pairs = [(user, item) for user, items in owned.items() for item in items]
    users, items = np.array(pairs, dtype=np.int32).T
    rows = Rows(users, items, np.empty((len(users), 0), np.float32), [], np.arange(8), 60_000)
    monkeypatch.setattr(parts_of_pairs, "PART_ROWS", part_rows)
    counts, array = split(rows, 1, 2)
    bounds, table = array("buckets_indptr"), array("buckets")
    assert (counts.buckets, len(bounds)) == (len(table), 9)
    assert (bounds[0], bounds[-1], np.diff(bounds).min()) == (0, len(table), 1)
    indptr, positives = array("positives_indptr"), array("positives")
    assert np.diff(indptr).tolist() == [0, 2, 299, 0, 39, 1, 0, 0]
    for user in range(8):
        own = positives[indptr[user] : indptr[user + 1]]
        count = np.full(len(own), bounds[user + 1] - bounds[user])
        where = bounds[user] + bucket_of(own, count)
        for at in range(bounds[user], bounds[user + 1]):
            low = own[where == at].astype(np.uint16)
            assert sorted(table[at]) == sorted(np.pad(low, (0, SLOTS - len(low))))


def held(rows: Rows, seed: int, times: Sliced | None = None) -> Int64s:
    return choose_test_rows(rows.users, user_counts(rows.users, len(rows.user_names)), seed, times)


def test_another_seed_holds_out_other_rows() -> None:
    rows = rows_of([(user, item) for user in range(6) for item in range(10)])
    assert len({tuple(held(rows, seed).tolist()) for seed in range(5)}) == 5


def test_every_row_of_a_user_is_held_out_equally_often() -> None:
    users = np.tile(np.arange(2000, dtype=np.int32), 5)
    found = choose_test_rows(users, user_counts(users, 2000), 3, None) // 2000
    assert np.abs(np.bincount(found) - 400).max() < 4 * np.sqrt(400)


def test_with_times_the_latest_row_is_held_out_and_of_equal_times_the_last() -> None:
    rows = rows_of([(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)])
    assert held(rows, 1, np.array([9, 30, 30, 8, 7])).tolist() == [2, 3]


@pytest.mark.parametrize("timed", [False, True])
def test_which_of_a_users_rows_is_held_out_does_not_depend_on_how_rows_lie_in_slices(
    tmp_path: Path, timed: bool
) -> None:
    random = np.random.default_rng(5)
    users = random.integers(3_000, size=2 * SLICE_ROWS + 9).astype(np.int32)
    times = random.integers(1_000, size=len(users)) if timed else None
    counts = np.bincount(users)
    with ColumnFile(tmp_path / "users", np.int32) as column:
        column.append(users[:1_000])
        column.append(users[1_000:])
        assert user_counts(column, 3_000).tolist() == counts.tolist()
        found = choose_test_rows(column, counts, 3, times)
    order = np.argsort(users, kind="stable")
    by_user = choose_test_rows(users[order], counts, 3, None if times is None else times[order])
    assert order[by_user].tolist() == found.tolist()
    if times is not None:
        assert found.tolist() == np.lexsort((times, users))[np.cumsum(counts) - 1].tolist()


def test_a_user_with_too_few_negatives_is_named_with_what_to_do() -> None:
    rows = named(["ann", "ann", "bob", "bob"], [1, 2, 3, 3])
    with pytest.raises(DataError, match=r"user ann: needs 2 .* --test-negatives 1 or fewer"):
        split(rows, 1, 2)


def test_a_user_with_no_negative_left_is_named() -> None:
    rows = named(["ann", "ann", "ann", "bob"], [1, 2, 2, 1])
    with pytest.raises(DataError, match=r"user ann: has a row of each of the 2 items"):
        split(rows, 1, 1)


def test_a_single_row_of_the_only_item_leaves_no_negative() -> None:
    rows = named(["ann"], [1])
    with pytest.raises(DataError, match="user ann: has a training row of each of the 1 items"):
        split(rows, 1, 1)


def test_users_and_items_are_numbered_in_the_order_of_their_names() -> None:
    rows = named(["b", "a", "b"], [30, 10, 20])
    assert rows.users.tolist() == [1, 0, 1]
    assert rows.items.tolist() == [2, 0, 1]
    assert (rows.user_names.tolist(), rows.item_count) == (["a", "b"], 3)


@pytest.mark.parametrize("part_bytes", [1, 700, 1 << 20])
def test_many_training_rows_lie_in_random_order_however_they_were_put_there(
    monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    random = np.random.default_rng(3)
    users, items = random.integers(6, size=200), random.integers(40, size=200)
    rows = rows_of(list(zip(users.tolist(), items.tolist(), strict=True)))
    _, in_order = split(rows, 1, 2)
    monkeypatch.setattr(sampling, "MANY_ROWS", 100)
    monkeypatch.setattr(arrays, "PART_BYTES", part_bytes)
    _, moved = split(rows, 1, 2)
    expected = np.empty_like(in_order("train_rows"))
    expected[sampling.storage_order(0, len(expected), len(expected))] = in_order("train_rows")
    assert moved("train_rows").tobytes() == expected.tobytes()
    assert moved("train_rows").tobytes() != in_order("train_rows").tobytes()
    for name in ("test_users", "test_context", "positives", "buckets"):
        assert moved(name).tolist() == in_order(name).tolist()
