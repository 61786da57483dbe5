"""Counter-based order and negatives: pure functions of seed, epoch, row.

Nothing here has a state, so any number of ranks, any loader and engine, and a run resumed in the
middle of an epoch see the same instances. Random words are Philox4x32-10 (Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3"), a counter-based generator. An epoch's order is a
24-round Feistel bijection (Mitchell et al. 2022, "Bandwidth-optimal random shuffling for GPUs")
on the next power of two, walked in cycles until it falls below the number of rows (Black and
Rogaway 2002): the row at any position is computed without its neighbours, and nothing of the
size of the data is kept.

Of data larger than the caches it is an order of blocks, each of a few rows that lie side by side: a
row by itself costs a walk of the page table. The rows lie in random order (`places`), so that
neighbours have no more to do with one another than any others. (Xu et al. 2022, "In-database
machine learning with CorgiPile", orders blocks of data that lies in its own order.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

M0, M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
FEISTEL_M = 0xD2B74407B1CE6E93
_FEISTEL_ROUNDS = 24

# The last counter word separates the purposes, so that no two ever share random words.
NEGATIVES, ORDER, HELD_OUT, TEST_NEGATIVES, SYNTHETIC, DROPOUT, PLACES = range(7)

ROWS_PER_BLOCK = 16
MANY_ROWS = 1 << 20
"""Data with this many rows is read in blocks; fewer rows nearly fit into the caches."""
MAX_COMPARISONS = 1 << 14
"""Comparisons that take no longer than the operations of a search by halves."""


def philox(seed: int, purpose: int, epoch: int, rows: Ints, blocks: int = 1) -> NDArray[np.uint32]:
    """Random 32-bit words [len(rows), 4 * blocks]; words 4j to 4j + 3 are of block j.

    Counter: (row's low word, row's high word, epoch, purpose * 2^24 + block); key: the seed's
    two words. `blocks` is at most 2^24.
    """
    rows = np.asarray(rows, dtype=np.uint64)
    shape = (len(rows), blocks)
    block = np.arange(blocks, dtype=np.uint64) + np.uint64(purpose << 24)
    words = (
        np.broadcast_to((rows & np.uint64(_MASK))[:, None], shape),
        np.broadcast_to((rows >> np.uint64(32))[:, None], shape),
        np.full(shape, epoch & _MASK, dtype=np.uint64),
        np.broadcast_to(block, shape),
    )
    mixed = _rounds(words, seed)
    return np.stack(mixed, axis=-1).reshape(len(rows), 4 * blocks).astype(np.uint32)


def philox_block(seed: int, purpose: int, epoch: int, row: int, block: int) -> tuple[int, ...]:
    """Compute the four words of one block in plain Python, equal to those of `philox`."""
    return _rounds((row & _MASK, row >> 32, epoch & _MASK, (purpose << 24) + block), seed)


def _rounds(words: Any, seed: int) -> tuple[Any, Any, Any, Any]:
    """Apply Philox's ten rounds to four 32-bit words, given as int or as uint64 arrays."""
    c0, c1, c2, c3 = words
    for k0, k1 in round_keys(seed):
        p0, p1 = c0 * M0, c2 * M1
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
    return c0, c1, c2, c3


@lru_cache(maxsize=8)
def round_keys(seed: int) -> tuple[tuple[int, int], ...]:
    """Pairs of keys for Philox's ten rounds."""
    k0, k1 = seed & _MASK, seed >> 32 & _MASK
    return tuple(((k0 + at * _W0) & _MASK, (k1 + at * _W1) & _MASK) for at in range(10))


def uniform_below(words: NDArray[np.uint32], bound: Ints | int) -> Ints:
    """Map random words to integers in [0, bound), with a bias under bound / 2^32.

    The method is that of Lemire (2019).
    """
    product = words.astype(np.uint64) * np.asarray(bound, dtype=np.uint64)
    return (product >> np.uint64(32)).astype(np.int64)


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
            high, low = product >> np.uint64(32), product & np.uint64(_MASK)
            low = (low << shift) | (right >> np.uint64(left_bits))
            left, right = (high ^ key ^ right) & left_mask, low & right_mask
    return left << np.uint64(right_bits) | right


def rank_shard(start: int, stop: int, rank: int, world_size: int) -> tuple[int, int]:
    """First and end position of a rank's part of the positions `start` to `stop`.

    The parts of all ranks are disjoint and complete, and their sizes differ by one at most.
    """
    length = stop - start
    return start + length * rank // world_size, start + length * (rank + 1) // world_size


def all_suspected(users: Ints, items: Ints) -> Ints:  # noqa: ARG001
    return np.arange(items.size)


def sample_negatives(
    seed: int,
    epoch: int,
    rows: Ints,
    users: Ints,
    indptr: Ints,
    positives: NDArray[np.int32],
    items: int,
    count: int,
    suspected: Callable[[Ints, Ints], Ints] = all_suspected,
) -> Ints:
    """Draw `count` items for each row that its user has in no training row.

    Returns [len(rows), count].

    `positives[indptr[u]:indptr[u + 1]]` are user u's items, sorted, each once; `others` items are
    not among them. Draws r below `others` and takes item r, or if r is a positive, its jth (0 is
    the first), the absent item number others - 1 - j.

    Exact, of one word: if t positives are below `others`, t of the last items, from `others` on,
    are absent, and they are the absent items number others - t to others - 1. So each r gives an
    item of its own. (It is a step of a Fisher-Yates shuffle: what was taken is replaced by the
    last.)

    `suspected` returns the flat places of items drawn [n, count] that may be their users'
    positives, each once or more: `arrays.possible_positives` spares the search for most.
    """
    words = philox(seed, NEGATIVES, epoch, rows, -(-count // 4))[:, :count]
    first = indptr[users]
    held = indptr[users + 1] - first
    drawn = uniform_below(words, (items - held)[:, None])
    at, flat = suspected(users, drawn), drawn.reshape(-1)
    before, taken = find_positives(flat[at], positives, first[at // count], held[at // count])
    at, before = at[taken], before[taken]
    first, held = first[at // count], held[at // count]
    flat[at] = nth_absent(items - held - 1 - before, positives, first, held)
    return flat.reshape(drawn.shape)


def find_positives(
    sought: Ints | NDArray[np.int32], positives: NDArray[np.int32], first: Ints, held: Ints
) -> tuple[Ints, NDArray[np.bool_]]:
    """Count the positives below each sought item, and tell whether it is one of them.

    A user's positives are positives[first : first + held], sorted.
    """
    if not len(positives):
        return np.zeros(sought.shape, np.int64), np.zeros(sought.shape, np.bool_)
    before = _below(sought, positives, first, held)
    value = positives[np.minimum(first + before, len(positives) - 1)]
    return before, (before < held) & (value == sought)


def nth_absent(nth: Ints, positives: NDArray[np.int32], first: Ints, held: Ints) -> Ints:
    """Return the nth item, counted from 0, that is not in positives[first : first + held].

    Below sorted positive j there are positives[j] - j absent items: the answer is nth plus the
    number of positives with positives[j] - j <= nth.
    """
    return nth + _below(nth + 1, positives, first, held, less_their_places=True)


def _below(
    bound: Ints | NDArray[np.int32],
    positives: NDArray[np.int32],
    first: Ints,
    held: Ints,
    less_their_places: bool = False,
) -> Ints:
    """Count how many of positives[first : first + held] are below a bound.

    With `less_their_places` each positive counts less its place in that range. Few positives
    are all compared; otherwise the number is found bit by bit, from the highest.
    """
    most = int(held.max(initial=0))
    if bound.size * most <= MAX_COMPARISONS:
        place = np.arange(most)
        value = positives[np.minimum(first[..., None] + place, len(positives) - 1)]
        least = bound[..., None] + place if less_their_places else bound[..., None]
        count: Ints = np.count_nonzero((place < held[..., None]) & (value < least), axis=-1)
        return count
    before, start = np.zeros(bound.shape, np.int64), first - 1
    for bit in reversed(range(most.bit_length())):
        tried = before + (1 << bit)
        value = positives[np.minimum(start + tried, len(positives) - 1)]  # not used beyond the last
        least = bound + (tried - 1) if less_their_places else bound
        before = np.where((tried <= held) & (value < least), tried, before)
    return before


def sample_row_negatives(
    seed: int, epoch: int, row: int, positives: Sequence[int], items: int, count: int
) -> list[int]:
    """Draw one row's negatives in plain Python, equal to those of `sample_negatives`.

    `positives` are the user's items, sorted, each once.
    """
    drawn: list[int] = []
    held, others = len(positives), items - len(positives)
    for k in range(count):
        if k % 4 == 0:
            words = philox_block(seed, NEGATIVES, epoch, row, k // 4)
        item = words[k % 4] * others >> 32
        before = bisect_left(positives, item)
        if before < held and positives[before] == item:
            item = others - 1 - before
            item += bisect_right(range(held), item, key=lambda j: positives[j] - j)
        drawn.append(item)
    return drawn
