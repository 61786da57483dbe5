"""A step's instances: those of hpcncf/ncf/sampling.py, which says what and why."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from prefetching import prefetch
from sizes import CONTEXT, EACH, NEGATIVES, compiled

FEW = 512  # positives all of which are looked at: halving their list four times would cost more
ROUNDS = 24
ONE, HALF, LOW = np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)
M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
FEISTEL_M = np.uint64(0xD2B74407B1CE6E93)
PURPOSE = np.uint64(24)
DRAWN, ORDER = np.uint64(0), np.uint64(1)


class Data(NamedTuple):
    rows: NDArray[np.uint8]
    """[rows, bytes]: the memory of the next four, which hpcncf/ncf/data/arrays.py tells of."""
    users: NDArray[np.int32]
    own: NDArray[np.int32]
    """[rows]: items."""
    numbers: NDArray[np.float32]
    small: NDArray[np.uint8]
    indptr: NDArray[np.int64]
    positives: NDArray[np.int32]
    items: int
    each: int
    """Rows of a block."""
    bits: int
    """Of the bijection that an epoch's order of blocks is."""


class Batch(NamedTuple):
    rows: NDArray[np.int64]
    blocks: NDArray[np.int64]
    users: NDArray[np.int32]
    items: NDArray[np.int32]
    words: NDArray[np.uint64]
    left: NDArray[np.uint64]
    right: NDArray[np.uint64]
    places: NDArray[np.int64]


def opened(
    rows: NDArray[np.void],
    indptr: NDArray[np.int64],
    positives: NDArray[np.int32],
    items: int,
    each: int,
) -> Data:
    fields = [rows[name] for name in ("user", "item", "numbers", "small")]
    assert fields[2].shape[1] + fields[3].shape[1] == CONTEXT
    bits = max(4, (len(rows) // each - 1).bit_length())
    whole = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    return Data(whole, *fields, indptr, positives, items, each, bits)


def room(positives: int) -> Batch:
    def of(kind: type, *more: int) -> NDArray[np.generic]:
        return np.zeros((positives, *more), kind)

    words, order = of(np.uint64, 4), (of(np.uint64), of(np.uint64), of(np.int64))
    return Batch(of(np.int64), of(np.int64), of(np.int32), of(np.int32, EACH), words, *order)


@compiled
def philox(seed, purpose, epoch, row):
    c0, c1, c2, c3 = row & LOW, row >> HALF, epoch, purpose << PURPOSE
    k0, k1 = seed & LOW, seed >> HALF
    for _ in range(10):
        p0, p1 = c0 * M0, c2 * M1
        c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ k0, p1 & LOW, (p0 >> HALF) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return c0, c1, c2, c3


@compiled
def order_keys(seed, epoch):
    keys = np.empty(ROUNDS, np.uint64)
    for number in range(ROUNDS):
        keys[number] = philox(seed, ORDER, epoch, np.uint64(number))[0]
    return keys


@compiled
def bijection(left, right, count, keys, left_bits, right_bits):
    left_mask, right_mask = (ONE << left_bits) - ONE, (ONE << right_bits) - ONE
    shift = right_bits - left_bits
    for number in range(ROUNDS):
        key = keys[number]
        for n in range(count):
            product = left[n] * FEISTEL_M
            low = ((product & LOW) << shift) | (right[n] >> left_bits)
            left[n] = ((product >> HALF) ^ key ^ right[n]) & left_mask
            right[n] = low & right_mask


@compiled
def order(data, batch, keys, start, count):
    """The rows at positions start to start + count; those behind the last whole block come last."""
    length, each = data.rows.shape[0], data.each
    end = min(start + count, length // each * each)
    first = start // each
    blocks(data, batch, keys, first, max(0, (end + each - 1) // each - first))
    for n in range(count):
        at = start + n
        batch.rows[n] = batch.blocks[at // each - first] * each + at % each if at < end else at


@compiled
def blocks(data, batch, keys, start, count):
    """The blocks at these places: what falls outside goes on until it is in."""
    left_bits, right_bits = np.uint64(data.bits // 2), np.uint64(data.bits - data.bits // 2)
    left, right, places = batch.left, batch.right, batch.places
    bound = np.uint64(data.rows.shape[0] // data.each)
    for n in range(count):
        value = np.uint64(start + n)
        left[n], right[n] = value >> right_bits, value & ((ONE << right_bits) - ONE)
        places[n] = n
    while count:
        bijection(left, right, count, keys, left_bits, right_bits)
        outside = 0
        for n in range(count):
            value = (left[n] << right_bits) | right[n]
            if value < bound:
                batch.blocks[places[n]] = np.int64(value)
            else:
                left[outside], right[outside], places[outside] = left[n], right[n], places[n]
                outside += 1
        count = outside


@compiled
def is_drawn(positives, items):
    """Whether one of the negatives is among these."""
    found = False
    for n in range(len(positives)):
        for k in range(1, EACH):
            found |= positives[n] == items[k]
    return found


@compiled
def leading(positives, apart, bound):
    """How many positives[n] - apart * n are less than the bound."""
    low, high = 0, len(positives)
    while low < high:
        middle = (low + high) >> 1
        if positives[middle] - apart * middle < bound:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def negative(drawn, others, positives):
    """The item drawn below the number of others, or the absent one that it stands for."""
    before = leading(positives, 0, drawn)
    if before == len(positives) or positives[before] != drawn:
        return drawn
    nth = others - 1 - before
    return nth + leading(positives, 1, nth + 1)


@compiled
def draw(data, batch, seed, epoch, keys, start, count):
    """Each loop asks for what the next one reads."""
    order(data, batch, keys, start, count)
    width = data.rows.shape[1]
    for p in range(count):
        prefetch(data.rows, batch.rows[p] * width)
        prefetch(data.rows, batch.rows[p] * width + width - 1)
    for p in range(count):
        words = philox(seed, DRAWN, epoch, np.uint64(batch.rows[p]))
        for k in range(4):
            batch.words[p, k] = words[k]
    for p in range(count):
        batch.users[p] = data.users[batch.rows[p]]
        batch.items[p, 0] = data.own[batch.rows[p]]
        prefetch(data.indptr, np.int64(batch.users[p]))
    for p in range(count):
        prefetch(data.positives, data.indptr[batch.users[p]])
    for p in range(count):
        first, last = data.indptr[batch.users[p]], data.indptr[batch.users[p] + 1]
        own, items, others = data.positives[first:last], batch.items[p], data.items - (last - first)
        for k in range(NEGATIVES):
            items[1 + k] = (batch.words[p, k] * np.uint64(others)) >> HALF
        if len(own) > FEW or is_drawn(own, items):
            for k in range(1, EACH):
                items[k] = negative(np.int64(items[k]), others, own)
