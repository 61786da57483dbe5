"""`sampling` on a device: the same order and negatives, as torch tensors.

Unsigned words stand in int64: a product that wraps has the right low 64 bits, and the sign that a
right shift brings in is masked away. Sizes and numbers of rounds are known beforehand and the host
reads no value, so it never waits for a GPU. Tested on CPUs; not yet run on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpcncf.ncf import sampling

_MASK = 0xFFFFFFFF
_FEISTEL_M = sampling.FEISTEL_M - 2**64  # the same 64 bits, signed
# Positions whose order is computed at once; six numbers of each are held meanwhile. A GPU's time is
# that of starting operations, and a CPU's cache holds no more.
_ON_GPU, _ON_CPU = 2**22, 2**14


def philox(seed: int, purpose: int, epoch: int, rows: Tensor, blocks: int = 1) -> Tensor:
    """`sampling.philox` of rows int64 [n]: words [n, 4 * blocks] below 2^32, int64."""
    shape = (len(rows), blocks)
    block = torch.arange(blocks, device=rows.device) + (purpose << 24)
    c0, c1 = ((rows >> shift & _MASK)[:, None].expand(shape) for shift in (0, 32))
    c2, c3 = torch.full_like(c0, epoch & _MASK), block.expand(shape)
    for k0, k1 in sampling.round_keys(seed):
        p0, p1 = c0 * sampling.M0, c2 * sampling.M1
        c0, c1 = (p1 >> 32 & _MASK) ^ c1 ^ k0, p1 & _MASK
        c2, c3 = (p0 >> 32 & _MASK) ^ c3 ^ k1, p0 & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1).reshape(len(rows), 4 * blocks)


def epoch_order(seed: int, epoch: int, rows: int, device: torch.device) -> Tensor:
    """`sampling.epoch_rows` of a whole epoch: int64 [rows]. It holds `order_bytes` meanwhile."""
    each, keys = sampling.rows_per_block(rows), sampling.order_keys(seed, epoch)
    blocks = _permutation(rows // each, keys, device)
    if each == 1:
        return blocks
    order = torch.arange(rows, device=device)
    order[: len(blocks) * each].view(-1, each)[:] = blocks[:, None] * each + order[:each]
    return order


def order_bytes(rows: int) -> int:
    """Of the three tables that a permutation is made from; in blocks, of the order, the blocks and
    the rows they are spread to."""
    blocks = rows // sampling.rows_per_block(rows)
    return 3 * 8 << sampling.order_bits(rows) if blocks == rows else 8 * (2 * rows + blocks)


def _permutation(count: int, keys: list[int], device: torch.device) -> Tensor:
    """A permutation of range(count), whole.

    A walk of a cycle from a position below `count` meets each value outside once at most before it
    is below again. Doubling the strides of all walks, so many values are passed in that many's
    logarithm of rounds: exact, however the keys fall.
    """
    if count <= 1:
        return torch.arange(count, device=device)
    bits = sampling.order_bits(count)
    positions = torch.arange(2**bits, device=device)
    parts = torch.split(positions, _ON_CPU if device.type == "cpu" else _ON_GPU)
    following = torch.cat([_bijection(each, bits, keys) for each in parts])
    walked = torch.where(positions < count, positions, following)
    del positions
    for _ in range((2**bits - count).bit_length()):
        walked = walked.index_select(0, walked)
    return walked.index_select(0, following[:count])


def _bijection(value: Tensor, bits: int, keys: list[int]) -> Tensor:
    left_bits, right_bits = bits // 2, bits - bits // 2
    left_mask, right_mask = (1 << left_bits) - 1, (1 << right_bits) - 1
    shift = right_bits - left_bits
    left, right = value >> right_bits, value & right_mask
    for key in keys:
        product = left * _FEISTEL_M
        low = ((product & _MASK) << shift) | (right >> left_bits)
        left, right = ((product >> 32 & _MASK) ^ key ^ right) & left_mask, low & right_mask
    return left << right_bits | right


def negatives(
    seed: int,
    epoch: int,
    rows: Tensor,
    users: Tensor,
    indptr: Tensor,
    positives: Tensor,
    items: int,
    count: int,
    most: int,
) -> Tensor:
    """`sampling.negatives`: int64 [len(rows), count]. No user has more than `most` positives."""
    words = philox(seed, sampling.NEGATIVES, epoch, rows, -(-count // 4))[:, :count]
    first = indptr.index_select(0, users)[:, None]
    held = indptr.index_select(0, users + 1)[:, None] - first
    others = items - held
    drawn = words * others >> 32
    before = _below(drawn, positives, first, held, most)
    value = positives.take((first + before).clamp(max=len(positives) - 1))
    absent = nth_absent(others - 1 - before, positives, first, held, most)
    return torch.where((before < held) & (value == drawn), absent, drawn)


def nth_absent(nth: Tensor, positives: Tensor, first: Tensor, held: Tensor, most: int) -> Tensor:
    """`sampling.nth_absent`, with as many rounds as `most` positives of a user need."""
    return nth + _below(nth + 1, positives, first, held, most, less_their_places=True)


def _below(
    bound: Tensor,
    positives: Tensor,
    first: Tensor,
    held: Tensor,
    most: int,
    less_their_places: bool = False,
) -> Tensor:
    """How many of positives[first : first + held], or of these less their places there, are below a
    bound: of each number bit by bit, from the highest."""
    before, start = torch.zeros_like(bound), first - 1
    for bit in reversed(range(most.bit_length())):
        tried = before + (1 << bit)
        value = positives.take((start + tried).clamp(max=len(positives) - 1))  # see sampling
        least = bound + (tried - 1) if less_their_places else bound
        before = torch.where((tried <= held) & (value < least), tried, before)
    return before
