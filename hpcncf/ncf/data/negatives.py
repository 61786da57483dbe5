"""The test rows' negatives: drawn once, stored with the data, the same for every run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcncf.ncf.data.columns import Sliced, slices
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.rows import Int32s, Int64s, Rows, distinct_pairs
from hpcncf.ncf.sampling import TEST_NEGATIVES, below, nth_absent, philox

_USERS_AT_ONCE = 1 << 14


def refuse_too_few(
    user_names: Any, users: Int32s, indptr: Int64s, item_count: int, count: int
) -> None:
    """Raises DataError where a tested user has rows of all but fewer than `count` items."""
    candidates = item_count - np.diff(indptr)[users]
    if not len(users) or candidates.min() >= count:
        return
    worst = int(candidates.argmin())
    who, fewest = f"user {user_names[users[worst]]}", candidates[worst]
    if not fewest:
        raise DataError(
            f"{who}: has a row of each of the {item_count} items, so that no test negative can be "
            "drawn: leave the user out"
        )
    raise DataError(
        f"{who}: needs {count} test negatives, but has no row of only {fewest} of the "
        f"{item_count} items: give --test-negatives {fewest} or fewer"
    )


def drawn(
    users: Int32s, indptr: Int64s, items: Sliced, item_count: int, seed: int, count: int
) -> Iterator[Int32s]:
    """For users that ascend, slice by slice, items [users, count] that are none of the user's
    items[indptr[user] : indptr[user + 1]], no one twice; a function of (seed, user)."""
    for part in slices(len(users), _USERS_AT_ONCE):
        some = users[part]
        first, last = indptr[some], indptr[some + 1]
        nth = _distinct_below(item_count - (last - first), some, seed, count)
        own = items[int(first[0]) : int(last[-1])]
        absent = nth_absent(nth, own, (first - first[0])[:, None], (last - first)[:, None])
        yield absent.astype(np.int32)


def draw_test_negatives(rows: Rows, users: Int32s, seed: int, count: int) -> Int32s:
    """The same of rows in memory, at once. Raises DataError where a user has too few."""
    indptr, items = distinct_pairs(rows.users, rows.items, len(rows.user_names), rows.item_count)
    refuse_too_few(rows.user_names, users, indptr, rows.item_count, count)
    none = np.empty((0, count), dtype=np.int32)
    return np.concatenate([none, *drawn(users, indptr, items, rows.item_count, seed, count)])


def _distinct_below(bounds: Int64s, users: Int32s, seed: int, count: int) -> Int64s:
    """`count` distinct integers below each bound, every set as likely (Floyd; Bentley 1987)."""
    words = philox(seed, TEST_NEGATIVES, 0, users.astype(np.int64), -(-count // 4))
    chosen = np.empty((len(users), count), dtype=np.int64)
    for step in range(count):
        top = bounds - count + step
        pick = below(words[:, step], top + 1)
        taken = (chosen[:, :step] == pick[:, None]).any(axis=1)
        chosen[:, step] = np.where(taken, top, pick)
    return chosen
