"""Rows are held out, test negatives drawn, and arrays written, without a changed bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from numpy.typing import NDArray

from hpcncf.data import epoch_order
from hpcncf.data import split as splitting
from hpcncf.data.arrays import (
    Floats,
    Interactions,
    Rows,
    Split,
    bucket_of,
    items_by_user,
    row_dtype,
    unpack_context,
)
from hpcncf.data.manifest import SLOTS, DataError
from hpcncf.data.split import (
    choose_test_rows,
    draw_test_negatives,
    fits_a_byte,
    leave_one_out,
    write_split,
)

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), min_size=1, max_size=60)
ARRAYS = (
    *("train_rows", "test_users", "test_items", "test_context", "test_negatives"),
    *("positives_indptr", "positives", "buckets_indptr", "buckets"),
)
SEEDS = st.integers(0, 2**63 - 1)
FLOATS = of_numpy.arrays(
    np.float32,
    st.tuples(st.integers(1, 9), st.integers(0, 5)),
    elements=st.one_of(st.integers(0, 255).map(float), st.floats(width=32)),
)


def rows_of(pairs: list[tuple[int, int]], item_count: int = 40) -> Rows:
    """Rows whose only context column is the row's number, so that a row can be followed."""
    users, items = np.array(pairs, dtype=np.int32).T
    number = np.arange(len(pairs), dtype=np.float32)[:, None]
    return Rows(users, items, number, ["row"], np.arange(6), item_count)


def split(
    rows: Rows, seed: int, negatives: int
) -> tuple[dict[str, Any], Callable[[str], NDArray[Any]]]:
    """The counts, and the written arrays by name."""
    with TemporaryDirectory() as folder:
        counts = write_split(Path(folder), leave_one_out(Interactions(rows, None), seed, negatives))
        arrays = {path.stem: np.load(path) for path in Path(folder).iterdir()}
        assert set(arrays) == set(ARRAYS)
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
    assert counts["train_rows"] == len(array("train_users"))
    assert counts["test_rows"] == (times > 1).sum()
    for part in ("train", "test"):
        reported = [pairs[int(at)] for at in array(f"{part}_context")[:, 0]]
        found = array(f"{part}_users").tolist(), array(f"{part}_items").tolist()
        assert list(zip(*found, strict=True)) == reported
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


def test_a_users_negatives_do_not_depend_on_who_else_is_tested() -> None:
    rows = rows_of([(user, item) for user in range(6) for item in (user, user + 1)])
    everybody = draw_test_negatives(rows, np.arange(6, dtype=np.int32), 7, 11)
    alone = draw_test_negatives(rows, np.array([4], dtype=np.int32), 7, 11)
    assert everybody[4].tolist() == alone[0].tolist()


def test_all_candidates_are_drawn_when_as_many_are_wanted() -> None:
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


def test_each_user_has_buckets_of_their_own_positives() -> None:
    """Of users without rows, first, between others and last, of one with few and one with many."""
    many = np.random.default_rng(2).choice(60_000, 300, replace=False).tolist()
    owned = {1: [7, 7, 9], 2: many, 4: [*range(31_000, 31_040)], 5: [0]}
    pairs = [(user, item) for user, items in owned.items() for item in items]
    users, items = np.array(pairs, dtype=np.int32).T
    rows = Rows(users, items, np.empty((len(users), 0), np.float32), [], np.arange(8), 60_000)
    counts, array = split(rows, 1, 2)
    bounds, table = array("buckets_indptr"), array("buckets")
    assert (counts["buckets"], len(bounds)) == (len(table), 9)
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


def test_another_seed_holds_out_other_rows() -> None:
    rows = rows_of([(user, item) for user in range(6) for item in range(10)])
    assert len({tuple(choose_test_rows(rows, None, seed).tolist()) for seed in range(5)}) == 5


def test_every_row_of_a_user_is_held_out_equally_often() -> None:
    users = np.tile(np.arange(2000, dtype=np.int32), 5)
    none = np.empty((len(users), 0), np.float32)
    rows = Rows(users, users, none, [], np.arange(2000), 2000)
    found = choose_test_rows(rows, None, 3)
    assert (users[found] == np.arange(2000)).all()
    assert np.abs(np.bincount(found // 2000) - 400).max() < 4 * np.sqrt(400)


def test_with_times_the_latest_row_is_held_out_and_of_equal_times_the_last() -> None:
    rows = rows_of([(1, 4), (0, 1), (0, 2), (0, 3), (1, 5), (2, 1)])
    times = np.array([8, 9, 30, 30, 7, 1])
    assert choose_test_rows(rows, times, 1).tolist() == [3, 0, -1, -1, -1, -1]


@given(PAIRS, SEEDS)
def test_written_bytes_do_not_depend_on_the_parts_that_are_packed_at_once(
    pairs: list[tuple[int, int]], seed: int
) -> None:
    counts, array = split(rows_of(pairs), seed, 20)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(splitting, "ROWS_AT_ONCE", 3)
        patched.setattr(splitting, "USERS_AT_ONCE", 2)
        in_parts, other = split(rows_of(pairs), seed, 20)
    assert in_parts == counts
    for name in ARRAYS:
        assert other(name).tobytes() == array(name).tobytes()


def test_rows_that_are_split_already_are_written_as_those_that_are_split_here() -> None:
    """Of users with one row each, which are all for training."""
    rows = rows_of([(user, 2 * user) for user in range(6)])
    none = replace(rows, users=rows.users[:0], items=rows.items[:0], context=rows.context[:0])
    counts, array = split(rows, 1, 4)
    with TemporaryDirectory() as folder:
        ready = Split(rows, none, np.empty((0, 4), dtype=np.int32))
        assert write_split(Path(folder), ready) == counts
        for name in ARRAYS:
            assert np.load(f"{folder}/{name}.npy").tobytes() == array(name).tobytes()


@pytest.mark.parametrize(
    ("pairs", "item_count", "negatives", "reported"),
    [
        ([(0, 0), (0, 1), (1, 2), (1, 2)], 3, 2, r"user 0: needs 2 .* --test-negatives 1 or fewer"),
        ([(0, 0), (0, 1), (0, 1), (1, 0)], 2, 1, "user 0: has a row of each of the 2 items"),
        ([(0, 0)], 1, 1, "user 0: has a training row of each of the 1 items"),
    ],
)
def test_a_user_with_too_few_negatives_is_named_with_what_to_do(
    pairs: list[tuple[int, int]], item_count: int, negatives: int, reported: str
) -> None:
    with pytest.raises(DataError, match=reported):
        split(rows_of(pairs, item_count), 1, negatives)


def test_many_training_rows_lie_in_random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    users, items = random.integers(6, size=200), random.integers(40, size=200)
    rows = rows_of(list(zip(users.tolist(), items.tolist(), strict=True)))
    _, in_order = split(rows, 1, 2)
    monkeypatch.setattr(epoch_order, "MANY_ROWS", 100)
    _, moved = split(rows, 1, 2)
    expected = np.empty_like(in_order("train_rows"))
    expected[epoch_order.storage_order(0, len(expected), len(expected))] = in_order("train_rows")
    assert moved("train_rows").tobytes() == expected.tobytes()
    assert moved("train_rows").tobytes() != in_order("train_rows").tobytes()
    for name in ("test_users", "test_context", "positives", "buckets"):
        assert moved(name).tolist() == in_order(name).tolist()


@pytest.mark.parametrize("value", [0, 1, 254, 255])
def test_a_whole_number_up_to_255_fits_a_byte(value: float) -> None:
    assert fits_a_byte(np.array([0, value, 1], np.float32))


@pytest.mark.parametrize(
    "value", [256, 511, 1e9, -1, -0.0, 0.5, 254.5, 1e-30, np.nan, np.inf, -np.inf]
)
def test_any_other_number_does_not(value: float) -> None:
    assert not fits_a_byte(np.array([0, value, 1], np.float32))


@given(FLOATS)
def test_written_rows_keep_every_bit_of_their_context(context: Floats) -> None:
    """Numbers first, then bytes, both in the order of the source."""
    number = np.arange(len(context), dtype=np.int32)
    names = [str(column) for column in range(context.shape[1])]
    counts, array = split(Rows(number % 2, number % 3, context, names, np.arange(2), 9), 1, 4)
    order = [int(name) for name in counts["context_columns"]]
    small = [fits_a_byte(column) for column in context.T]
    assert order == sorted(range(len(order)), key=lambda column: small[column])
    assert counts["small_columns"] == sum(small)
    numbers = len(small) - sum(small)
    assert array("train_rows").dtype == row_dtype(numbers, sum(small))
    ours = np.concatenate([array("train_context"), array("test_context")])
    theirs = np.ascontiguousarray(context[:, order])
    assert sorted(ours.view(np.uint32).tolist()) == sorted(theirs.view(np.uint32).tolist())


def test_one_row_has_a_context_of_its_own() -> None:
    row: NDArray[Any] = np.zeros((), row_dtype(0, 2))
    assert unpack_context(row).tolist() == [0.0, 0.0]
