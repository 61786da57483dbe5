"""Negatives of training rows: items that the row's user has no row with, drawn without a state."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hpcncf.data.random_words import NEGATIVES, Ints, philox, philox_block, uniform_below

MAX_COMPARISONS = 1 << 14
"""Comparisons that take no longer than the operations of a search by halves."""


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
