"""Hash buckets of a user's items, one cache line each.

A user has as many buckets as it takes for none to overflow, and an item's is found by multiplying
it with 2^32 over the golden ratio (Knuth 1973, "The art of computer programming" 3, 6.4): what
follows one another lies far apart, and a search reads one line, whatever the user has. (What has
strides of a Fibonacci number may lie together: no list takes more than a bucket for every 15 items
that there are.) A bucket holds the low 16 bits of its items, 0 where it has no more of them. So an
item that is not found is no positive; one that is found nearly always is, and is then looked for in
the sorted list.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.arrays import Int32s, Int64s

SLOTS: Final = 32
_GOLDEN: Final = np.uint32(0x9E3779B1)
# So full, buckets of many seldom overflow.
_USUAL: Final = 24


def build_buckets(indptr: Int64s, positives: Int32s) -> tuple[Int64s, NDArray[np.uint16]]:
    """Bounds [users + 1] of each user's buckets, one or more, and the buckets [n, SLOTS].

    User u's positives are positives[indptr[u]:indptr[u + 1]], each once.
    """
    held = np.diff(indptr)
    owners = np.repeat(np.arange(len(held)), held)
    bounds = np.concatenate([[0], np.cumsum(_counts(held, owners, positives))])
    at = bounds[owners] + bucket_of(positives, np.diff(bounds)[owners])
    order = np.argsort(at, kind="stable")
    at = at[order]
    table = np.zeros((bounds[-1], SLOTS), dtype=np.uint16)
    table[at, np.arange(len(at)) - np.searchsorted(at, at)] = positives[order].astype(np.uint16)
    return bounds, table


def bucket_of(items: Int32s | Int64s, counts: Int64s) -> Int64s:
    """Which of so many buckets an item belongs to."""
    spread = items.astype(np.uint32) * _GOLDEN  # modulo 2^32
    return (spread.astype(np.uint64) * counts.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def possible_positives(bounds: Int64s, table: NDArray[np.uint16], users: Int64s, items: Int64s) -> Int64s:
    """Where, flat, of `items` [n, k] one may be a positive of its user, of `users` [n]; a place as
    often as it was found there."""
    first = bounds[users]
    at = first[:, None] + bucket_of(items, (bounds[users + 1] - first)[:, None])
    same = table.take(at.reshape(-1), axis=0) == items.astype(np.uint16).reshape(-1, 1)
    found: Int64s = np.flatnonzero(same) // SLOTS
    return found


def _counts(held: Int64s, owners: Int64s, positives: Int32s) -> Int64s:
    """Of each user's buckets: more, by and by, for those of whom one overflows."""
    counts = np.where(held <= SLOTS, 1, -(-held // _USUAL))
    unsure = held > SLOTS
    while unsure.any():
        mine = unsure[owners]
        owners, positives = owners[mine], positives[mine]
        bounds = np.concatenate([[0], np.cumsum(np.where(unsure, counts, 0))])
        at = bounds[owners] + bucket_of(positives, counts[owners])
        overflowing = np.flatnonzero(np.bincount(at) > SLOTS)
        unsure = np.zeros_like(unsure)
        unsure[np.searchsorted(bounds, overflowing, side="right") - 1] = True
        counts[unsure] += 1 + counts[unsure] // 8
    return counts
