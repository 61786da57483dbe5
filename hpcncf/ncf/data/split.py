"""Split interactions into training and test rows, and write the arrays of a prepared folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hpcncf.ncf.data.arrays import (
    Floats,
    Int32s,
    Int64s,
    Rows,
    Split,
    build_buckets,
    items_by_user,
    pack_rows,
)
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.sampling import (
    HELD_OUT,
    TEST_NEGATIVES,
    nth_absent,
    philox,
    storage_order,
    uniform_below,
)

USERS_AT_ONCE: Final = 1 << 14


def leave_one_out(
    rows: Rows, seed: int, test_negatives: int, times: NDArray[Any] | None = None
) -> Split:
    """One row of each user with two rows or more is for testing.

    Raises DataError if a user has too few items to draw negatives from.
    """
    held = choose_test_rows(rows.users, len(rows.user_names), seed, times)
    test, for_training = rows.take(held), np.ones(len(rows), dtype=np.bool_)
    for_training[held] = False
    negatives = draw_test_negatives(rows, test.users, seed, test_negatives)
    return Split(rows.take(for_training), test, negatives)


def choose_test_rows(
    users: Int32s, user_count: int, seed: int, times: NDArray[Any] | None
) -> Int64s:
    """The numbers of the rows held out, by user.

    A user's latest row, of equal times the last; without times a random row, a function of (seed,
    user). A user with a single row keeps it for training.
    """
    counts = np.bincount(users, minlength=user_count)
    ends = np.cumsum(counts)
    if times is None:
        order = np.argsort(users, kind="stable")
        words = philox(seed, HELD_OUT, 0, np.arange(user_count))[:, 0]
        which = ends - counts + uniform_below(words, counts)
    else:
        order, which = np.lexsort((times, users)), ends - 1
    held: Int64s = order[which[counts > 1]]
    return held


def draw_test_negatives(rows: Rows, users: Int32s, seed: int, count: int) -> Int32s:
    """[users, count]: distinct items without a row of the user; `users` ascend.

    The draw is a function of (seed, user). Raises DataError if a user has too few such items.
    """
    indptr, items = items_by_user(rows)
    first, held = indptr[users], np.diff(indptr)[users]
    candidates = rows.item_count - held
    _check_test_negatives(rows, users, candidates, count)
    drawn = np.empty((len(users), count), dtype=np.int32)
    for start in range(0, len(users), USERS_AT_ONCE):
        some = slice(start, start + USERS_AT_ONCE)
        nth = _distinct_below(candidates[some], users[some], seed, count)
        drawn[some] = nth_absent(nth, items, first[some, None], held[some, None])
    return drawn


def _distinct_below(bounds: Int64s, users: Int32s, seed: int, count: int) -> Int64s:
    """`count` distinct integers below each bound, all sets equally likely (Floyd; Bentley 1987)."""
    words = philox(seed, TEST_NEGATIVES, 0, users.astype(np.int64), -(-count // 4))
    chosen = np.empty((len(users), count), dtype=np.int64)
    for step in range(count):
        top = bounds - count + step
        pick = uniform_below(words[:, step], top + 1)
        taken = (chosen[:, :step] == pick[:, None]).any(axis=1)
        chosen[:, step] = np.where(taken, top, pick)
    return chosen


def _check_test_negatives(rows: Rows, users: Int32s, candidates: Int64s, count: int) -> None:
    """Raises DataError if fewer than `count` items have no row of a tested user."""
    if not len(users) or candidates.min() >= count:
        return
    worst = int(candidates.argmin())
    user, fewest = f"user {rows.user_names[users[worst]]}", candidates[worst]
    if not fewest:
        raise DataError(
            f"{user}: has a row of each of the {rows.item_count} items, so that no test negative "
            "can be drawn. Leave the user out"
        )
    raise DataError(
        f"{user}: needs {count} test negatives, but only {fewest} of the {rows.item_count} items "
        f"have no row of this user. Give --test-negatives {fewest} or fewer"
    )


def write_split(folder: Path, split: Split) -> dict[str, Any]:
    """Write the arrays; returns their sizes by the names in the manifest.

    Raises DataError if a user has a training row of each item.
    """
    train, test = split.train, split.test
    indptr, positives = items_by_user(train)
    everything = np.flatnonzero(np.diff(indptr) == train.item_count)
    if len(everything):
        raise DataError(
            f"user {train.user_names[everything[0]]}: has a training row of each of the "
            f"{train.item_count} items, so that no negative can be drawn. Leave the user out"
        )
    # Columns of whole numbers from 0 to 255, such as those of one-hot columns, come last.
    columns = zip(train.context.T, test.context.T, strict=True)
    small = [fits_a_byte(of_train) and fits_a_byte(of_test) for of_train, of_test in columns]
    order, small_columns = np.argsort(small, kind="stable"), sum(small)
    rows = pack_rows(train.users, train.items, train.context[:, order], small_columns)
    train_rows = np.empty_like(rows)
    train_rows[storage_order(0, len(rows), len(rows))] = rows
    bounds, buckets = build_buckets(indptr, positives)
    arrays = {
        "train_rows": train_rows,
        "test_users": test.users,
        "test_items": test.items,
        "test_context": test.context[:, order],
        "test_negatives": split.test_negatives,
        "positives_indptr": indptr,
        "positives": positives,
        "buckets_indptr": bounds,
        "buckets": buckets,
    }
    for name, array in arrays.items():
        _save(folder / f"{name}.npy", np.ascontiguousarray(array))
    return {
        "users": len(train.user_names),
        "items": train.item_count,
        "train_rows": len(train),
        "train_pairs": len(positives),
        "test_rows": len(test),
        "context_columns": [train.context_columns[column] for column in order],
        "small_columns": small_columns,
        "buckets": len(buckets),
        "test_negatives": split.test_negatives.shape[1],
    }


def fits_a_byte(values: Floats) -> bool:
    """Whether each value has the same bits after a round trip through a byte. -0 does not."""
    with np.errstate(invalid="ignore"):  # values outside of 0 to 255 become any byte
        back = values.astype(np.uint8).astype(np.float32)
    return np.array_equal(values.view(np.uint32), back.view(np.uint32))


def _save(path: Path, array: NDArray[Any]) -> None:
    """np.save, in one write, which a kernel with large folios for the file system caches in few
    pieces; and a full disk is an OSError with its reason."""
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
        file.write(array.data)
