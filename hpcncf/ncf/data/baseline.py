"""Score a table of counts: how much of a data set's HR@10 is memory and not learning."""

from __future__ import annotations

from typing import Final

import numpy as np

from hpcncf.ncf.data.arrays import Int64s, slices
from hpcncf.ncf.data.manifest import TOP_K, DataError
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.data.split import user_counts

TEST_ROWS_AT_ONCE: Final = 1 << 14
TRAIN_ROWS_AT_ONCE: Final = 1 << 22


def score_counts(prepared: Prepared) -> dict[str, float]:
    """`hr10` and `ndcg10` of ranking by the user's own training count of the item, then by the
    item's training count over all users.

    A candidate whose counts equal the positive's is ranked before it: ties never help. Raises
    DataError if the data has no test rows.
    """
    if not prepared.manifest.test_rows:
        raise DataError("no user has a held-out row, so that there is nothing to rank")
    ranks = rank_by_counts(prepared)
    gains = np.where(ranks < TOP_K, 1 / np.log2(ranks + 2.0), 0.0)
    return {"hr10": float((ranks < TOP_K).mean()), "ndcg10": float(gains.mean())}


def rank_by_counts(prepared: Prepared, train_rows: int = TRAIN_ROWS_AT_ONCE) -> Int64s:
    """[test rows]: how many of the negatives are ranked before the positive.

    Works on ranges of users with about `train_rows` training rows each, so that memory does not
    grow with the data.
    """
    popularity = user_counts(prepared.train_items, prepared.manifest.items)
    counts = user_counts(prepared.train_users, prepared.manifest.users)
    before = np.zeros(prepared.manifest.test_rows, dtype=np.int64)
    range_of = (np.cumsum(counts) - counts) // train_rows
    for number in np.unique(range_of):
        first, end = np.searchsorted(range_of, (number, number + 1))
        _rank_users(prepared, int(first), int(end), popularity, before)
    return before


def _rank_users(
    prepared: Prepared, first: int, end: int, popularity: Int64s, before: Int64s
) -> None:
    """Fill in the ranks of the test rows whose users are from `first` to `end`."""
    item_count = prepared.manifest.items
    found = [np.empty(0, dtype=np.int64)]
    for part in slices(prepared.manifest.train_rows):
        users = prepared.train_users[part]
        mine = np.flatnonzero((users >= first) & (users < end))
        items = prepared.train_items[part][mine]
        found.append(users[mine].astype(np.int64) * item_count + items)
    pairs, counts = np.unique(np.concatenate(found), return_counts=True)
    pairs, counts = np.append(pairs, np.iinfo(np.int64).max), np.append(counts, 0)
    tested = np.flatnonzero((prepared.test_users >= first) & (prepared.test_users < end))
    for part in slices(len(tested), TEST_ROWS_AT_ONCE):
        rows = tested[part]
        candidates = np.column_stack([prepared.test_items[rows], prepared.test_negatives[rows]])
        wanted = prepared.test_users[rows].astype(np.int64)[:, None] * item_count + candidates
        at = np.searchsorted(pairs, wanted)
        own = np.where(pairs[at] == wanted, counts[at], 0)
        score = own * (prepared.manifest.train_rows + 1) + popularity[candidates]
        before[rows] = (score[:, 1:] >= score[:, :1]).sum(axis=1)
