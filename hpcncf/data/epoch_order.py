"""The order of an epoch's rows, and each rank's part: pure functions of seed, epoch, position.

The order is a 24-round Feistel bijection (Mitchell et al. 2022, "Bandwidth-optimal random shuffling
for GPUs") on the next power of two, walked in cycles until it falls below the number of rows (Black
and Rogaway 2002): the row at any position is computed without its neighbours, and nothing of the
size of the data is kept.

Of data larger than the caches it is an order of blocks, each of a few rows that lie side by side: a
row by itself costs a walk of the page table. The rows lie in random order (`places`), so that
neighbours have no more to do with one another than any others. (Xu et al. 2022, "In-database
machine learning with CorgiPile", orders blocks of data that lies in its own order.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcncf.data.random_words import MASK, ORDER, PLACES, Ints, philox

FEISTEL_M = 0xD2B74407B1CE6E93
_FEISTEL_ROUNDS = 24

ROWS_PER_BLOCK = 16
MANY_ROWS = 1 << 20
"""Data with this many rows is read in blocks; fewer rows nearly fit into the caches."""


def rows_per_block(rows: int) -> int:
    """Number of rows per block; rows of a block follow one another in every epoch.

    It is 1 if there are fewer than MANY_ROWS `rows`.
    """
    return ROWS_PER_BLOCK if rows >= MANY_ROWS else 1


def storage_order(start: int, stop: int, rows: int) -> Ints:
    """Places in the prepared data of the source's rows `start` to `stop`.

    They are a permutation of range(rows) if rows are read in blocks, else the source's order.
    """
    if rows_per_block(rows) == 1:
        return np.arange(start, stop)
    return _permute(start, stop, rows, _round_words(0, PLACES, 0))


def epoch_rows(seed: int, epoch: int, start: int, stop: int, rows: int) -> Ints:
    """Rows at positions `start` to `stop` of an epoch's order, a permutation of range(rows).

    The few behind the last whole block come last.
    """
    each, keys = rows_per_block(rows), order_keys(seed, epoch)
    if each == 1:
        return _permute(start, stop, rows, keys)
    whole = rows // each * each
    first, end = start // each, -(-min(stop, whole) // each)
    blocks = _permute(first, max(first, end), rows // each, keys)
    found = (blocks[:, None] * each + np.arange(each)).reshape(-1)[start - first * each :]
    last = np.arange(max(start, whole), stop)
    return np.concatenate([found, last])[: stop - start]


def _permute(start: int, stop: int, count: int, keys: list[int]) -> Ints:
    """Values at positions `start` to `stop` of a pseudorandom permutation of range(count)."""
    value = np.arange(start, stop, dtype=np.uint64)
    if count <= 1:
        return value.astype(np.int64)
    bits, words = order_bits(count), np.array(keys, dtype=np.uint64)
    value = _bijection(value, bits, words)
    outside = np.flatnonzero(value >= count)
    while len(outside):
        value[outside] = _bijection(value[outside], bits, words)
        outside = outside[value[outside] >= count]
    return value.astype(np.int64)


def order_bits(count: int) -> int:
    """Number of bits of the bijection that a permutation of `count` values uses, at least 4."""
    return max(4, (count - 1).bit_length())  # on fewer, some orders would come far too often


def order_keys(seed: int, epoch: int) -> list[int]:
    """Keys of the bijection's rounds for the order of an epoch."""
    return _round_words(seed, ORDER, epoch)


def _round_words(seed: int, purpose: int, epoch: int) -> list[int]:
    words: list[int] = philox(seed, purpose, epoch, np.arange(_FEISTEL_ROUNDS), 1)[:, 0].tolist()
    return words


def _bijection(
    value: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Apply a pseudorandom permutation of range(2^bits) to the values.

    Its unbalanced Feistel rounds work on a left and a right part.
    """
    left_bits, right_bits = bits // 2, bits - bits // 2
    left_mask, right_mask = np.uint64((1 << left_bits) - 1), np.uint64((1 << right_bits) - 1)
    shift = np.uint64(right_bits - left_bits)
    left, right = value >> np.uint64(right_bits), value & right_mask
    with np.errstate(over="ignore"):  # products modulo 2^64 are meant
        for key in keys:
            product = left * np.uint64(FEISTEL_M)
            high, low = product >> np.uint64(32), product & np.uint64(MASK)
            low = (low << shift) | (right >> np.uint64(left_bits))
            left, right = (high ^ key ^ right) & left_mask, low & right_mask
    return left << np.uint64(right_bits) | right


def rank_shard(start: int, stop: int, rank: int, world_size: int) -> tuple[int, int]:
    """First and end position of a rank's part of the positions `start` to `stop`.

    The parts of all ranks are disjoint and complete, and their sizes differ by one at most.
    """
    length = stop - start
    return start + length * rank // world_size, start + length * (rank + 1) // world_size
