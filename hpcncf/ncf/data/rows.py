"""Interactions of a data set, and each user's distinct items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.columns import Sliced

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


def record(context_columns: int) -> np.dtype[Any]:
    """A training row as its file holds it. All of a row lies together: rows, or blocks of
    them, are read at random, and each place costs a walk of the page table."""
    context = ("context", np.float32, (context_columns,))
    return np.dtype([("user", np.int32), ("item", np.int32), context])


def recorded(users: NDArray[Any], items: NDArray[Any], context: NDArray[Any]) -> NDArray[Any]:
    """`users` [n], `items` [n] and `context` [n, columns] as training rows [n]."""
    rows = np.empty(len(users), record(context.shape[1]))
    rows["user"], rows["item"], rows["context"] = users, items, context
    return rows


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


def keys(users: Int64s, positives: Int32s, item_count: int) -> NDArray[np.uint16]:
    """Of each positive, sorted for users that ascend, 16 bits of it less its place in its user's
    list: half the bytes by which to find how many of them come before a negative."""
    places = np.arange(len(users)) - np.searchsorted(users, users)
    shift = max(0, (item_count - 1).bit_length() - 16)
    return ((positives - places) >> shift).astype(np.uint16)


def contains(positives: Int32s, indptr: Int64s, users: Int32s, items: Int32s) -> NDArray[np.bool_]:
    """[n]: whether each item is among its user's, positives[indptr[user] : indptr[user + 1]]."""
    if not len(positives):
        return np.zeros(len(users), dtype=np.bool_)
    low, end = indptr[users], indptr[users + 1]
    high = end
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        at = np.minimum(middle, len(positives) - 1)  # not read where the search is over
        before = (low < high) & (positives[at] < items)
        low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
    found: NDArray[np.bool_] = positives[np.minimum(low, len(positives) - 1)] == items
    return found & (low < end)
