"""Interactions of a data set, and each user's distinct items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.columns import Sliced
from hpcncf.ncf.sampling import find

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


def record(numbers: int, small: int) -> np.dtype[Any]:
    """A training row as its file holds it: of its context `numbers` columns of any numbers, then
    `small` ones of a byte each. All of a row lies together: rows, or blocks of them, are read at
    random, and each place costs a walk of the page table."""
    context = ("numbers", np.float32, (numbers,)), ("small", np.uint8, (small,))
    return np.dtype([("user", np.int32), ("item", np.int32), *context])


def recorded(
    users: NDArray[Any], items: NDArray[Any], context: NDArray[Any], small: int
) -> NDArray[Any]:
    """`users` [n], `items` [n] and `context` [n, columns] as training rows [n]. The last `small`
    columns hold whole numbers from 0 to 255 only."""
    numbers = context.shape[1] - small
    rows = np.empty(len(users), record(numbers, small))
    rows["user"], rows["item"] = users, items
    rows["numbers"], rows["small"] = context[:, :numbers], context[:, numbers:]
    return rows


def context_of(rows: NDArray[Any]) -> Floats:
    """[n, columns]: the context of `recorded` rows [n], or of one row [columns]."""
    return np.concatenate([rows["numbers"], rows["small"]], axis=-1, dtype=np.float32)


class Interactions(Protocol):
    """Rows in the order of their source, in memory or in files; users and items are numbered from
    0."""

    @property
    def users(self) -> Sliced: ...
    @property
    def items(self) -> Sliced: ...
    @property
    def context(self) -> Sliced:
        """[rows, columns]"""

    @property
    def context_columns(self) -> list[str]: ...
    @property
    def user_names(self) -> Any:
        """What the source calls each user, for messages; their number is the number of users."""

    @property
    def item_count(self) -> int: ...


@dataclass(frozen=True)
class Rows:
    """Interactions in memory."""

    users: Int32s
    items: Int32s
    context: Floats
    context_columns: list[str]
    user_names: NDArray[Any]
    item_count: int

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class Split:
    """What a prepared folder holds, in memory."""

    train: Rows
    test: Rows
    test_negatives: Int32s
    """[test rows, negatives]"""


def numbered(
    users: NDArray[Any],
    items: NDArray[Any],
    context: Floats | None = None,
    context_columns: list[str] | None = None,
) -> Rows:
    """Rows whose users and items are numbered from 0 in the order of their sorted names."""
    user_names, user_numbers = np.unique(users, return_inverse=True)
    item_names, item_numbers = np.unique(items, return_inverse=True)
    if context is None:
        context = np.empty((len(users), 0), dtype=np.float32)
    return Rows(
        user_numbers.astype(np.int32),
        item_numbers.astype(np.int32),
        context,
        context_columns or [],
        user_names,
        len(item_names),
    )


def distinct(values: Int64s) -> Int64s:
    """Sorted values, each once. (np.unique would make a hash table, several times as large.)"""
    first = np.ones(len(values), dtype=np.bool_)
    first[1:] = values[1:] != values[:-1]
    return values[first]


def distinct_pairs(
    users: Int32s, items: Int32s, user_count: int, item_count: int
) -> tuple[Int64s, Int32s]:
    """`indptr` [users + 1] and the items of each user, sorted, each once."""
    pairs = distinct(np.sort(users.astype(np.int64) * item_count + items))
    indptr = np.searchsorted(pairs, np.arange(user_count + 1, dtype=np.int64) * item_count)
    return indptr.astype(np.int64), (pairs % item_count).astype(np.int32)


def contains(positives: Int32s, indptr: Int64s, users: Int32s, items: Int32s) -> NDArray[np.bool_]:
    """[n]: whether each item is among its user's, positives[indptr[user] : indptr[user + 1]]."""
    first = indptr[users]
    return find(items, positives, first, indptr[users + 1] - first)[1]
