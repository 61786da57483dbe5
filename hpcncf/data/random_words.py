"""Counter-based random words: Philox4x32-10, a pure function of seed, purpose, epoch and row.

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". Nothing here has a state, so any
number of ranks, any loader and engine, and a run resumed in the middle of an epoch see the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

M0, M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF

# The last counter word separates the purposes, so that no two ever share random words.
NEGATIVES, ORDER, HELD_OUT, TEST_NEGATIVES, SYNTHETIC, DROPOUT, PLACES = range(7)


def philox(seed: int, purpose: int, epoch: int, rows: Ints, blocks: int = 1) -> NDArray[np.uint32]:
    """Random 32-bit words [len(rows), 4 * blocks]; words 4j to 4j + 3 are of block j.

    Counter: (row's low word, row's high word, epoch, purpose * 2^24 + block); key: the seed's
    two words. `blocks` is at most 2^24.
    """
    rows = np.asarray(rows, dtype=np.uint64)
    shape = (len(rows), blocks)
    block = np.arange(blocks, dtype=np.uint64) + np.uint64(purpose << 24)
    words = (
        np.broadcast_to((rows & np.uint64(MASK))[:, None], shape),
        np.broadcast_to((rows >> np.uint64(32))[:, None], shape),
        np.full(shape, epoch & MASK, dtype=np.uint64),
        np.broadcast_to(block, shape),
    )
    mixed = _rounds(words, seed)
    return np.stack(mixed, axis=-1).reshape(len(rows), 4 * blocks).astype(np.uint32)


def philox_block(seed: int, purpose: int, epoch: int, row: int, block: int) -> tuple[int, ...]:
    """Compute the four words of one block in plain Python, equal to those of `philox`."""
    return _rounds((row & MASK, row >> 32, epoch & MASK, (purpose << 24) + block), seed)


def _rounds(words: Any, seed: int) -> tuple[Any, Any, Any, Any]:
    """Apply Philox's ten rounds to four 32-bit words, given as int or as uint64 arrays."""
    c0, c1, c2, c3 = words
    for k0, k1 in round_keys(seed):
        p0, p1 = c0 * M0, c2 * M1
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
    return c0, c1, c2, c3


@lru_cache(maxsize=8)
def round_keys(seed: int) -> tuple[tuple[int, int], ...]:
    """Pairs of keys for Philox's ten rounds."""
    k0, k1 = seed & MASK, seed >> 32 & MASK
    return tuple(((k0 + at * _W0) & MASK, (k1 + at * _W1) & MASK) for at in range(10))


def uniform_below(words: NDArray[np.uint32], bound: Ints | int) -> Ints:
    """Map random words to integers in [0, bound), with a bias under bound / 2^32.

    The method is that of Lemire (2019).
    """
    product = words.astype(np.uint64) * np.asarray(bound, dtype=np.uint64)
    return (product >> np.uint64(32)).astype(np.int64)
