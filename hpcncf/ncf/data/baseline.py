"""What a table of counts scores: how much of a data set's HR@10 is memory, not learning."""

from __future__ import annotations

import numpy as np

from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.data.rows import Int64s

TOP = 10
_ROWS_AT_ONCE = 1 << 14


def counts_baseline(prepared: Prepared) -> dict[str, float]:
    """`hr10` and `ndcg10` of ranking by the user's own training count of the item, then by the
    item's training count over all users.

    A candidate whose counts equal the positive's is ranked before it: ties never help. Raises
    DataError where the data has no test rows.
    """
    if not prepared.manifest.test_rows:
        raise DataError("no user has a held-out row, so that there is nothing to rank")
    ranks = _ranks(prepared)
    gains = np.where(ranks < TOP, 1 / np.log2(ranks + 2.0), 0.0)
    return {"hr10": float((ranks < TOP).mean()), "ndcg10": float(gains.mean())}


def _ranks(prepared: Prepared) -> Int64s:
    """[test rows]: how many of the negatives come before the positive."""
    items = prepared.manifest.items
    trained = prepared.train_users.astype(np.int64) * items + prepared.train_items
    pairs, counts = np.unique(trained, return_counts=True)
    popularity = np.bincount(prepared.train_items, minlength=items)
    before = np.empty(prepared.manifest.test_rows, dtype=np.int64)
    for start in range(0, len(before), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        candidates = np.column_stack([prepared.test_items[part], prepared.test_negatives[part]])
        wanted = prepared.test_users[part].astype(np.int64)[:, None] * items + candidates
        at = np.searchsorted(pairs, wanted).clip(max=len(pairs) - 1)
        own = np.where(pairs[at] == wanted, counts[at], 0)
        score = own * (len(trained) + 1) + popularity[candidates]
        before[part] = (score[:, 1:] >= score[:, :1]).sum(axis=1)
    return before
