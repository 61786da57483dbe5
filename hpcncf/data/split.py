"""Split interactions into training and test rows, and write the arrays of a prepared folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hpcncf.data.arrays import (
    Floats,
    Int32s,
    Int64s,
    Interactions,
    Rows,
    Split,
    build_buckets,
    items_by_user,
    pack_rows,
    row_dtype,
)
from hpcncf.data.epoch_order import storage_order
from hpcncf.data.manifest import DataError
from hpcncf.data.negatives import nth_absent
from hpcncf.data.random_words import HELD_OUT, TEST_NEGATIVES, philox, uniform_below

USERS_AT_ONCE: Final = 1 << 14
ROWS_AT_ONCE: Final = 1 << 18


def leave_one_out(table: Interactions, seed: int, test_negatives: int) -> Split:
    """Hold out one row of each user with two rows or more, and draw its negatives.

    Raises DataError if a user has too few items to draw negatives from.
    """
    rows = table.rows
    held = choose_test_rows(rows, table.times, seed)
    tested = held[held >= 0]
    training = np.ones(len(rows), dtype=bool)
    training[tested] = False
    test = rows.take(tested)
    negatives = draw_test_negatives(rows, test.users, seed, test_negatives)
    return Split(rows.take(training), test, negatives)


def write_split(folder: Path, split: Split) -> dict[str, Any]:
    """Write the arrays of a prepared folder; returns the manifest's counts by name.

    Raises DataError if a user has a training row of every item.
    """
    train, test = split.train, split.test
    indptr, positives = items_by_user(train)
    _check_training_negatives(train, np.diff(indptr))
    buckets_indptr, buckets = build_buckets(indptr, positives)
    columns = zip(train.context.T, test.context.T, strict=True)
    small = [fits_a_byte(of_train) and fits_a_byte(of_test) for of_train, of_test in columns]
    # Columns of whole numbers from 0 to 255, such as those of one-hot columns, come last.
    order = np.argsort(small, kind="stable")
    arrays = {
        "train_rows": _pack_in_storage_order(train, order, sum(small)),
        "test_users": test.users,
        "test_items": test.items,
        "test_context": np.ascontiguousarray(test.context[:, order]),
        "test_negatives": split.test_negatives,
        "positives_indptr": indptr,
        "positives": positives,
        "buckets_indptr": buckets_indptr,
        "buckets": buckets,
    }
    for name, array in arrays.items():
        # np.save would leave out why a write failed.
        with (folder / f"{name}.npy").open("wb") as file:
            npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
            file.write(array.data)
    return {
        "users": len(train.user_names),
        "items": train.item_count,
        "train_rows": len(train),
        "train_pairs": len(positives),
        "test_rows": len(test),
        "context_columns": [train.context_columns[column] for column in order],
        "small_columns": sum(small),
        "buckets": len(buckets),
        "test_negatives": split.test_negatives.shape[1],
    }


def _pack_in_storage_order(rows: Rows, order: Int64s, small: int) -> NDArray[Any]:
    """Pack rows with their context columns in `order`, in parts: a whole copy takes memory."""
    packed = np.empty(len(rows), row_dtype(len(order) - small, small))
    for start in range(0, len(rows), ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, len(rows))
        some, places = slice(start, stop), storage_order(start, stop, len(rows))
        context = rows.context[some, order]
        packed[places] = pack_rows(rows.users[some], rows.items[some], context, small)
    return packed


def choose_test_rows(rows: Rows, times: NDArray[Any] | None, seed: int) -> Int64s:
    """Choose the row of each user that is held out: row numbers [users], -1 for none.

    A user's latest row, of equal times the last; without times a random row, a function of (seed,
    user). A user with a single row keeps it for training.
    """
    counts = np.bincount(rows.users, minlength=len(rows.user_names))
    keys = (rows.users,) if times is None else (times, rows.users)
    order = np.lexsort(keys)
    if times is None:
        drawn = philox(seed, HELD_OUT, 0, np.arange(len(counts)))[:, 0]
        nth = uniform_below(drawn, counts)
    else:
        nth = counts - 1
    held = np.full(len(counts), -1, dtype=np.int64)
    several = counts > 1
    held[several] = order[(np.cumsum(counts) - counts + nth)[several]]
    return held


def draw_test_negatives(rows: Rows, users: Int32s, seed: int, count: int) -> Int32s:
    """Draw distinct items [users, count] that have no row of the user.

    The draw is a function of (seed, user). Raises DataError if a user has too few such items.
    """
    item_count = rows.item_count
    indptr, items = items_by_user(rows)
    _check_test_negatives(rows.user_names, users, indptr, item_count, count)
    first, held = indptr[users], np.diff(indptr)[users]
    drawn = np.empty((len(users), count), dtype=np.int32)
    for start in range(0, len(users), USERS_AT_ONCE):
        some = slice(start, start + USERS_AT_ONCE)
        nth = _distinct_below(item_count - held[some], users[some], seed, count)
        drawn[some] = nth_absent(nth, items, first[some, None], held[some, None])
    return drawn


def _distinct_below(bounds: Int64s, users: Int32s, seed: int, count: int) -> Int64s:
    """Draw `count` distinct integers below each bound, all sets equally likely.

    The method is Floyd's (Bentley 1987).
    """
    words = philox(seed, TEST_NEGATIVES, 0, users.astype(np.int64), -(-count // 4))
    chosen = np.empty((len(users), count), dtype=np.int64)
    for step in range(count):
        top = bounds - count + step
        pick = uniform_below(words[:, step], top + 1)
        taken = (chosen[:, :step] == pick[:, None]).any(axis=1)
        chosen[:, step] = np.where(taken, top, pick)
    return chosen


def _check_test_negatives(
    user_names: Any, users: Int32s, indptr: Int64s, item_count: int, count: int
) -> None:
    """Check that each tested user has enough items without a row. Raises DataError if not."""
    candidates = item_count - np.diff(indptr)[users]
    if not len(users) or candidates.min() >= count:
        return
    worst = int(candidates.argmin())
    user, fewest = f"user {user_names[users[worst]]}", candidates[worst]
    if not fewest:
        raise DataError(
            f"{user}: has a row of each of the {item_count} items, so that no test negative can be "
            "drawn. Leave the user out"
        )
    raise DataError(
        f"{user}: needs {count} test negatives, but only {fewest} of the {item_count} items have "
        f"no row of this user. Give --test-negatives {fewest} or fewer"
    )


def _check_training_negatives(train: Rows, held: Int64s) -> None:
    everything = np.flatnonzero(held == train.item_count)
    if len(everything):
        raise DataError(
            f"user {train.user_names[everything[0]]}: has a training row of each of the "
            f"{train.item_count} items, so that no negative can be drawn. Leave the user out"
        )


def fits_a_byte(values: Floats) -> bool:
    """Whether all values survive the conversion to a byte and back bit by bit; -0 does not."""
    with np.errstate(invalid="ignore"):  # values outside of 0 to 255 become any byte
        back = values.astype(np.uint8).astype(np.float32)
    return np.array_equal(values.view(np.uint32), back.view(np.uint32))
