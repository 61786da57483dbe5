"""Interactions in memory, and how they are split into training and held-out test rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.sampling import HELD_OUT, TEST_NEGATIVES, below, nth_absent, philox

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]

_USERS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Rows:
    """Interactions in the order of their source; users and items are numbered from 0."""

    users: Int32s
    items: Int32s
    context: Floats
    """[rows, columns]"""
    context_columns: list[str]
    user_names: NDArray[Any]
    """What the source calls each user, for messages; their number is the number of users."""
    item_count: int

    def __len__(self) -> int:
        return len(self.users)

    def take(self, at: NDArray[Any]) -> Rows:
        return Rows(
            self.users[at],
            self.items[at],
            self.context[at],
            self.context_columns,
            self.user_names,
            self.item_count,
        )


@dataclass(frozen=True)
class Split:
    """What a prepared folder holds."""

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


def distinct_pairs(
    users: Int32s, items: Int32s, user_count: int, item_count: int
) -> tuple[Int64s, Int32s]:
    """`indptr` [users + 1] and the items of each user, sorted, each once."""
    pairs = np.unique(users.astype(np.int64) * item_count + items)
    indptr = np.searchsorted(pairs, np.arange(user_count + 1, dtype=np.int64) * item_count)
    return indptr.astype(np.int64), (pairs % item_count).astype(np.int32)


def leave_one_out(
    rows: Rows, seed: int, negatives: int, times: NDArray[Any] | None = None
) -> Split:
    """Hold out each user's latest row (of equal times the last), or without times a random one.

    A user with a single row keeps it for training and is not tested. The random row and the
    negatives are functions of (seed, user). Raises DataError where a user has too few negatives.
    """
    held = _random_rows(rows, seed) if times is None else _latest_rows(rows, times)
    kept = np.ones(len(rows), dtype=bool)
    kept[held] = False
    test = rows.take(held)
    drawn = draw_test_negatives(rows, test.users, seed, negatives)
    return Split(rows.take(np.flatnonzero(kept)), test, drawn)


def _random_rows(rows: Rows, seed: int) -> Int64s:
    order = np.argsort(rows.users, kind="stable")
    counts = np.bincount(rows.users, minlength=len(rows.user_names))
    users = np.flatnonzero(counts > 1)
    nth = below(philox(seed, HELD_OUT, 0, users)[:, 0], counts[users])
    held: Int64s = order[(np.cumsum(counts) - counts)[users] + nth]
    return held


def _latest_rows(rows: Rows, times: NDArray[Any]) -> Int64s:
    order = np.lexsort((times, rows.users))
    counts = np.bincount(rows.users, minlength=len(rows.user_names))
    held: Int64s = order[(np.cumsum(counts) - 1)[counts > 1]]
    return held


def draw_test_negatives(rows: Rows, users: Int32s, seed: int, count: int) -> Int32s:
    """Items [len(users), count] that a user has no row of at all, in `rows`, none drawn twice."""
    indptr, items = distinct_pairs(rows.users, rows.items, len(rows.user_names), rows.item_count)
    candidates = rows.item_count - np.diff(indptr)[users]
    if len(users) and candidates.min() < count:
        worst = int(candidates.argmin())
        fewest = candidates[worst]
        raise DataError(
            f"user {rows.user_names[users[worst]]}: needs {count} test negatives, but has no row "
            f"of only {fewest} of the {rows.item_count} items: "
            + (f"give --test-negatives {fewest} or fewer" if fewest else "leave the user out")
        )
    drawn = np.empty((len(users), count), dtype=np.int32)
    for start in range(0, len(users), _USERS_AT_ONCE):
        part = slice(start, start + _USERS_AT_ONCE)
        nth = _distinct_below(candidates[part], users[part], seed, count)
        first, last = indptr[users[part]], indptr[users[part] + 1]
        drawn[part] = nth_absent(nth, items, first[:, None], (last - first)[:, None])
    return drawn


def _distinct_below(bounds: Int64s, users: Int32s, seed: int, count: int) -> Int64s:
    """`count` distinct integers below each bound, every set as likely (Floyd; Bentley 1987)."""
    words = philox(seed, TEST_NEGATIVES, 0, users.astype(np.int64), -(-count // 4))
    chosen = np.empty((len(users), count), dtype=np.int64)
    for step in range(count):
        top = bounds - count + step
        drawn = below(words[:, step], top + 1)
        taken = (chosen[:, :step] == drawn[:, None]).any(axis=1)
        chosen[:, step] = np.where(taken, top, drawn)
    return chosen
