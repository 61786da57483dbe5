"""Which row of each user is held out for testing: leave one out, in one sweep over the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.columns import Sliced, slices
from hpcncf.ncf.data.rows import Int64s
from hpcncf.ncf.sampling import HELD_OUT, below, philox


def user_counts(users: Sliced, user_count: int) -> Int64s:
    """[users]: how many rows each has."""
    counts = np.zeros(user_count, dtype=np.int64)
    for part in slices(len(users)):
        counts += np.bincount(users[part], minlength=user_count)
    return counts


def held_out(users: Sliced, counts: Int64s, seed: int, times: Sliced | None) -> Int64s:
    """The numbers of the rows held out, by user: each one's latest row (of equal times the last),
    or without times a random one, a function of (seed, user).

    A user with a single row keeps it for training.
    """
    if times is None:
        return _random_rows(users, counts, seed)[counts > 1]
    return _latest_rows(users, counts, times)[counts > 1]


def _random_rows(users: Sliced, counts: Int64s, seed: int) -> Int64s:
    chosen = _chosen(counts, seed)
    seen, held = np.zeros_like(counts), np.full(len(counts), -1, dtype=np.int64)
    for part in slices(len(users)):
        mine = users[part]
        order = np.argsort(mine, kind="stable")
        owners = mine[order]
        nth = seen[owners] + np.arange(len(owners)) - np.searchsorted(owners, owners)
        hit = nth == chosen[owners]
        held[owners[hit]] = part.start + order[hit]
        seen += np.bincount(mine, minlength=len(counts))
    return held


def _chosen(counts: Int64s, seed: int) -> Int64s:
    """[users]: which of the user's rows, counted in the order of the source."""
    chosen = np.zeros_like(counts)
    for part in slices(len(counts)):
        words = philox(seed, HELD_OUT, 0, np.arange(part.start, part.stop))[:, 0]
        chosen[part] = below(words, counts[part])
    return chosen


def _latest_rows(users: Sliced, counts: Int64s, times: Sliced) -> Int64s:
    held = np.full(len(counts), -1, dtype=np.int64)
    latest: NDArray[Any] = np.zeros(len(counts), dtype=times[:0].dtype)
    for part in slices(len(users)):
        mine, when = users[part], times[part]
        order = np.lexsort((when, mine))
        owners = mine[order]
        last = order[np.append(owners[1:] != owners[:-1], True)]
        newer = (held[mine[last]] < 0) | (when[last] >= latest[mine[last]])
        rows = last[newer]
        held[mine[rows]], latest[mine[rows]] = part.start + rows, when[rows]
    return held
