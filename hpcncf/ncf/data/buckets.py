"""Each user's positives in buckets of one cache line, which answer whether an item is a positive.

A user has as many buckets as needed for none to overflow. An item's bucket follows from
multiplication by 2^32 over the golden ratio (Knuth 1973, "The art of computer programming" 3, 6.4):
neighbouring items lie far apart, and a search reads one line, however many items the user has.
(Items at strides of a Fibonacci number may share buckets: no list takes more than a bucket for
every 15 items that exist.) A bucket holds the low 16 bits of its items, and 0 in unused slots. An
item that is not found is therefore no positive; one that is found nearly always is, and is then
looked up in the sorted list.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.arrays import Int32s, Int64s

SLOTS: Final = 32
_GOLDEN: Final = np.uint32(0x9E3779B1)
_TYPICAL_LOAD: Final = 24  # with so many items, few buckets overflow


def build_buckets(indptr: Int64s, positives: Int32s) -> tuple[Int64s, NDArray[np.uint16]]:
    """Bounds [users + 1] of each user's buckets, one or more, and the buckets [n, SLOTS].

    User u's positives are positives[indptr[u]:indptr[u + 1]], each once.
    """
    held = np.diff(indptr)
    owners = np.repeat(np.arange(len(held)), held)
    bounds = np.concatenate([[0], np.cumsum(_bucket_counts(held, owners, positives))])
    at = bounds[owners] + bucket_of(positives, np.diff(bounds)[owners])
    order = np.argsort(at, kind="stable")
    at = at[order]
    table = np.zeros((bounds[-1], SLOTS), dtype=np.uint16)
    table[at, np.arange(len(at)) - np.searchsorted(at, at)] = positives[order].astype(np.uint16)
    return bounds, table


def bucket_of(items: Int32s | Int64s, counts: Int64s) -> Int64s:
    """The bucket of each item, of `counts` buckets."""
    spread = items.astype(np.uint32) * _GOLDEN  # modulo 2^32
    return (spread.astype(np.uint64) * counts.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def possible_positives(
    bounds: Int64s, table: NDArray[np.uint16], users: Int64s, items: Int64s
) -> Int64s:
    """Flat indices of `items` [n, k] that may be positives of their users [n], with repeats."""
    first = bounds[users]
    at = first[:, None] + bucket_of(items, (bounds[users + 1] - first)[:, None])
    same = table.take(at.reshape(-1), axis=0) == items.astype(np.uint16).reshape(-1, 1)
    found: Int64s = np.flatnonzero(same) // SLOTS
    return found


def _bucket_counts(held: Int64s, owners: Int64s, positives: Int32s) -> Int64s:
    """Each user's number of buckets, raised step by step until none overflows."""
    counts = np.where(held <= SLOTS, 1, -(-held // _TYPICAL_LOAD))
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
