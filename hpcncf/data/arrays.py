"""Interactions in memory, training rows as they lie in a file, and buckets of positives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcncf.data.manifest import SLOTS

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


def row_dtype(numbers: int, small: int) -> np.dtype[Any]:
    """Dtype of a training row: user, item, float `numbers` and byte `small` context columns.

    A row lies together, since rows, or blocks of them, are read at random and each place costs a
    page-table walk.
    """
    context = ("numbers", np.float32, (numbers,)), ("small", np.uint8, (small,))
    return np.dtype([("user", np.int32), ("item", np.int32), *context])


def pack_rows(
    users: NDArray[Any], items: NDArray[Any], context: NDArray[Any], small: int
) -> NDArray[Any]:
    """Pack `users` [n], `items` [n] and `context` [n, columns] into training rows [n].

    The last `small` columns hold only whole numbers from 0 to 255.
    """
    numbers = context.shape[1] - small
    rows = np.empty(len(users), row_dtype(numbers, small))
    rows["user"], rows["item"] = users, items
    rows["numbers"], rows["small"] = context[:, :numbers], context[:, numbers:]
    return rows


def unpack_context(rows: NDArray[Any]) -> Floats:
    """Context [n, columns] of packed rows [n], or [columns] of a single row."""
    return np.concatenate([rows["numbers"], rows["small"]], axis=-1, dtype=np.float32)


@dataclass(frozen=True)
class Rows:
    """Interactions in memory; ids of users and items from 0."""

    users: Int32s
    items: Int32s
    context: Floats
    """[rows, columns]"""
    context_columns: list[str]
    user_names: Any
    """The source's name of each user, for messages; as many as there are users."""
    item_count: int

    def __len__(self) -> int:
        return len(self.users)

    def take(self, chosen: NDArray[Any]) -> Rows:
        """Select rows by a mask or by their numbers."""
        return replace(
            self,
            users=self.users[chosen],
            items=self.items[chosen],
            context=self.context[chosen],
        )


@dataclass(frozen=True)
class Interactions:
    """All interactions that were read from a source, with their times if it has any."""

    rows: Rows
    times: NDArray[Any] | None
    """[rows]; None if the source has no time."""


@dataclass(frozen=True)
class Split:
    """Training and test rows of a data set, with the negatives of each test row."""

    train: Rows
    test: Rows
    test_negatives: Int32s
    """[test rows, negatives]"""


def items_by_user(rows: Rows) -> tuple[Int64s, Int32s]:
    """Bounds `indptr` [users + 1] and each user's distinct items, sorted."""
    user_count, item_count = len(rows.user_names), rows.item_count
    pairs = np.sort(rows.users.astype(np.int64) * item_count + rows.items)
    # np.unique would build a hash table several times as large.
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    indptr = np.searchsorted(pairs, np.arange(user_count + 1, dtype=np.int64) * item_count)
    return indptr.astype(np.int64), (pairs % item_count).astype(np.int32)


# Each user's positives lie in buckets of one cache line, which answer whether an item is one.
# A user has as many buckets as needed for none to overflow. An item's bucket follows from
# multiplication by 2^32 over the golden ratio (Knuth 1973, "The art of computer programming" 3,
# 6.4): neighbouring items lie far apart, and a search reads one line, however many items the user
# has. (Items at strides of a Fibonacci number may share buckets: no list takes more than a bucket
# for every 15 items that exist.) A bucket holds the low 16 bits of its items, and 0 in unused
# slots. An item that is not found is therefore no positive; one that is found nearly always is, and
# is then looked up in the sorted list.

_GOLDEN: Final = np.uint32(0x9E3779B1)
_TYPICAL_LOAD: Final = 24  # few buckets with this many items overflow


def build_buckets(indptr: Int64s, positives: Int32s) -> tuple[Int64s, NDArray[np.uint16]]:
    """Build hash tables that tell quickly whether a user has a training row with an item.

    User u's positives are positives[indptr[u]:indptr[u + 1]], each once. Returns the bounds
    [users + 1] of the users' buckets, at least one each, and the buckets [n, SLOTS].
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
    """Hash each item to one of its user's `counts` buckets of positives, numbered from 0."""
    spread = items.astype(np.uint32) * _GOLDEN  # modulo 2^32
    return (spread.astype(np.uint64) * counts.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def possible_positives(
    bounds: Int64s, table: NDArray[np.uint16], users: Int64s, items: Int64s
) -> Int64s:
    """Flat indices of those `items` [n, k] that may be positives of their users [n].

    An index may occur more than once. All others are certainly not positives.
    """
    first = bounds[users]
    at = first[:, None] + bucket_of(items, (bounds[users + 1] - first)[:, None])
    same = table.take(at.reshape(-1), axis=0) == items.astype(np.uint16).reshape(-1, 1)
    found: Int64s = np.flatnonzero(same) // SLOTS
    return found


def _bucket_counts(held: Int64s, owners: Int64s, positives: Int32s) -> Int64s:
    """Number of buckets for each user, raised from an estimate until none overflows."""
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
