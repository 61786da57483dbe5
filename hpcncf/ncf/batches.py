"""The instances of a step on each rank, drawn on the host or on the device, and copied to it.

The device draws as `sampling` does, in torch tensors. Unsigned words stand in int64: a product
that wraps has the right low 64 bits, and the sign that a right shift brings in is masked away.
Sizes and numbers of rounds are known beforehand and the host reads no value, so it never waits for
a GPU. Tested on CPUs; not yet run on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.data import sampling
from hpcncf.data.arrays import possible_positives, unpack_context
from hpcncf.data.manifest import Manifest
from hpcncf.data.prepared import Prepared
from hpcncf.errors import HpcncfError, plural
from hpcncf.job.plan import Run
from hpcncf.job.spec import Training
from hpcncf.job.validate import GIB, model_bytes
from hpcncf.monitor.cgroup import memory_limit

ORDER_CHUNK = 65_536

# Users [b], items [b, 1 + negatives] with the positive first, context [b, columns].
BatchRows = tuple[Tensor, Tensor, Tensor]


class Batch(NamedTuple):
    """Instances, each positive followed by its negatives; dtype int64, int64, float32, float32."""

    users: Tensor
    items: Tensor
    context: Tensor
    labels: Tensor


def build_batch(rows: BatchRows) -> Batch:
    """Spread users and context over each positive's 1 + negatives instances, and label them."""
    users, items, context = rows
    each = items.shape[1]
    labels = torch.zeros(items.shape, device=items.device)
    labels[:, 0] = 1.0
    return Batch(
        users.repeat_interleave(each),
        items.reshape(-1),
        context.repeat_interleave(each, dim=0),
        labels.reshape(-1),
    )


@dataclass(frozen=True)
class Schedule:
    """Which positions of an epoch's order each step has, over all ranks and on this one."""

    rows: int
    batch: int
    """Positives per step over all ranks."""
    rank: int = 0
    world_size: int = 1

    @property
    def steps(self) -> int:
        return -(-self.rows // self.batch)

    def positives(self, step: int) -> int:
        """Over all ranks; fewer in an epoch's last step."""
        return min(self.batch, self.rows - step * self.batch)

    def equal_steps_from(self, step: int) -> int:
        """How many steps from this one on have as many positives; an epoch's last may have less."""
        return max(1, self.rows // self.batch - step)

    def positions(self, step: int) -> tuple[int, int]:
        """This rank's positions; empty if an epoch's last step has fewer positives than ranks."""
        start = step * self.batch
        return sampling.rank_shard(start, start + self.positives(step), self.rank, self.world_size)


class EpochOrder:
    """An epoch's order, computed in chunks: a chunk is cheap per row, a batch alone is not."""

    def __init__(self, seed: int, epoch: int, rows: int) -> None:
        self._seed, self._epoch, self._rows = seed, epoch, rows
        self._start, self._chunk = 0, np.empty(0, dtype=np.int64)

    def between(self, start: int, stop: int) -> NDArray[np.int64]:
        """The rows at these positions."""
        if start < self._start or stop > self._start + len(self._chunk):
            end = min(max(start + ORDER_CHUNK, stop), self._rows)
            self._chunk = sampling.epoch_rows(self._seed, self._epoch, start, end, self._rows)
            self._start = start
        return self._chunk[start - self._start : stop - self._start]


class InstanceSource:
    """The prepared arrays and the settings that decide an instance."""

    def __init__(self, data: Prepared, training: Training) -> None:
        self.seed, self.negatives = training.seed, training.negatives
        self.items = data.manifest.items
        # Indexing a memmap makes a memmap each time; the plain array of the same pages does not.
        self.train_rows = np.asarray(data.train_rows)
        self.indptr = np.asarray(data.positives_indptr)
        self.positives = np.asarray(data.positives)
        bounds, table = np.asarray(data.buckets_indptr), np.asarray(data.buckets)
        self.suspected = partial(possible_positives, bounds, table)

    def gather(self, epoch: int, rows: NDArray[np.int64]) -> BatchRows:
        """These rows with all their negatives at once."""
        mine = self.train_rows.take(rows)  # whole: each is in one place of memory
        users = mine["user"].astype(np.int64)
        known = self.seed, epoch, rows, users, self.indptr, self.positives, self.items
        drawn = sampling.sample_negatives(*known, count=self.negatives, suspected=self.suspected)
        items = np.concatenate([mine["item"][:, None], drawn], axis=1)
        context = torch.from_numpy(unpack_context(mine))
        return torch.from_numpy(users), torch.from_numpy(items), context


def check_model_memory(run: Run, manifest: Manifest, ranks: int) -> None:
    """Raises HpcncfError if the models of this node's `ranks` do not fit into its memory."""
    assert run.training is not None
    assert run.model is not None
    if run.training.device_for(run.resources) == "cuda":
        return
    sizes = (manifest.users, manifest.items, len(manifest.context_columns))
    needed = model_bytes(run.training, run.model, *sizes)
    there, whose = (
        float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "the node's memory",
    )
    limit = memory_limit()
    if limit is not None and limit.value * 2**20 < there:
        there, whose = limit.value * 2**20, "its cgroup's limit"
    if needed * ranks > there:
        raise HpcncfError(
            f"model: parameters and optimizer state for {manifest.users:,} users and "
            f"{manifest.items:,} items take at least {needed / GIB:.1f} GiB on each of {ranks} "
            f"{'ranks' if ranks > 1 else 'rank'} of this node, and {whose} is "
            f"{there / GIB:.1f} GiB. Use narrower widths in model, or more memory."
        )


Tensors = Sequence[Tensor]


def copied_to_device(
    batches: Iterator[Tensors], training: Training, device: torch.device
) -> Iterator[Tensors]:
    """The same tensors, in order, on the device, ready for its current stream. On a CPU, and with
    loader `device`, they are there already."""
    if device.type == "cpu" or training.loader == "device":
        return batches
    if training.prefetch_to_device:
        return _copy_ahead(batches, training, device)
    return (_copy(each, training, device) for each in batches)


def _copy(batch: Tensors, training: Training, device: torch.device) -> Tensors:
    pinned = [each.pin_memory() for each in batch] if training.pin_memory else batch
    return [each.to(device, non_blocking=training.non_blocking) for each in pinned]


def _copy_ahead(
    batches: Iterator[Tensors], training: Training, device: torch.device
) -> Iterator[Tensors]:
    """Copy the next batch while this one is computed."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def started() -> Tensors | None:
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(stream):
            return _copy(batch, training, device)

    following = started()
    while following is not None:
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        for each in following:
            each.record_stream(current)  # its memory is not reused while this stream reads it
        ready, following = following, started()
        yield ready


MIB: Final = 2**20
# Positives drawn at once, for several steps if these are short. A GPU needs many numbers to hide
# the start of about 300 operations; a CPU's cache holds no more than these.
ON_GPU: Final = 2**18
ON_CPU: Final = 2**12


Drawn = Iterator[tuple[list[int], BatchRows]]
"""For several steps at once: the positives of each step, and the rows of all, concatenated."""


class BatchWindow:
    """The rows drawn last, for several steps of `batch` positives each, in fixed memory."""

    def __init__(self, batch: int, most: int, device: torch.device) -> None:
        """`most`: maximum number of positives drawn at once."""
        self._batch, self._most = batch, most
        self._places = torch.arange(batch, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._rows: list[Tensor] = []

    def steps(self, drawn: Drawn) -> Iterator[BatchRows | None]:
        """Yields None for a whole batch, which `next_batch` returns; the rows of a smaller one."""
        for lengths, rows in drawn:
            self._fill(rows)
            for step, length in enumerate(lengths):
                if length == self._batch:
                    yield None
                else:
                    users, items, context = (each[step * self._batch :] for each in rows)
                    yield users, items, context

    def next_batch(self) -> BatchRows:
        """The next whole batch, always by the same operations."""
        places = self._places + self._at
        self._at.add_(self._batch)
        users, items, context = (each.index_select(0, places) for each in self._rows)
        return users, items, context

    def _fill(self, rows: BatchRows) -> None:
        if not self._rows:
            self._rows = [each.new_empty(self._most, *each.shape[1:]) for each in rows]
        for kept, each in zip(self._rows, rows, strict=True):
            kept[: len(each)].copy_(each)
        self._at.zero_()


class Resident:
    """Loader `device`: one rank's rows. It holds an epoch's whole order, 8 bytes a row."""

    def __init__(
        self, data: Prepared, training: Training, schedule: Schedule, device: torch.device
    ) -> None:
        self._training, self._schedule, self._device = training, schedule, device
        self._items = data.manifest.items
        self._most = int(np.diff(data.positives_indptr).max(initial=0))
        self._users, self._own, self._numbers, self._small, self._indptr, self._positives = (
            torch.from_numpy(np.array(each)).to(device) for each in _arrays(data)
        )

    def rows(self, epoch: int, steps: range) -> Iterator[BatchRows]:
        for lengths, parts in self.draw(epoch, steps):
            yield from zip(*(torch.split(part, lengths) for part in parts), strict=True)

    def draw(self, epoch: int, steps: range) -> Iterator[tuple[list[int], BatchRows]]:
        """Rows of several steps at once: see `Drawn`."""
        schedule = self._schedule
        order = epoch_order(self._training.seed, epoch, schedule.rows, self._device)
        at_once = max(1, _at_once(self._device) // schedule.batch)
        for first in range(steps.start, steps.stop, at_once):
            some = range(first, min(first + at_once, steps.stop))
            bounds = [schedule.positions(step) for step in some]
            if schedule.world_size == 1:  # one slice instead of one per step
                mine = order[bounds[0][0] : bounds[-1][1]]
            else:
                mine = torch.cat([order[start:stop] for start, stop in bounds])
            lengths = [stop - start for start, stop in bounds]
            yield lengths, self._gather(epoch, mine)

    def window(self) -> BatchWindow:
        """A window for the rows of `draw`, for a run of one rank."""
        most = positives_at_once(self._schedule, self._device)
        return BatchWindow(self._schedule.batch, most, self._device)

    def _gather(self, epoch: int, rows: Tensor) -> BatchRows:
        training = self._training
        users = self._users.index_select(0, rows).long()
        drawn = negatives(
            *(training.seed, epoch, rows, users, self._indptr, self._positives),
            *(self._items, training.negatives, self._most),
        )
        own = self._own.index_select(0, rows)[:, None]
        numbers, small = (each.index_select(0, rows) for each in (self._numbers, self._small))
        context = torch.cat([numbers, small.float()], dim=1)
        return users, torch.cat([own, drawn], dim=1), context


def check_device_loader(
    data: Prepared, training: Training, schedule: Schedule, device: torch.device, ranks: int
) -> None:
    """Raises HpcncfError if the data of this node's `ranks` certainly do not fit with `loader:
    device`. On a CPU it copies none."""
    if training.loader != "device" or device.type == "cpu":
        return
    free, _ = torch.cuda.mem_get_info(device)
    sharing = -(-ranks // torch.cuda.device_count())
    needed = device_loader_bytes(data, training, schedule, device) * sharing
    if needed > free:
        raise HpcncfError(
            f"training.loader device: the training data of {plural(sharing, 'rank')} take at least "
            f"{needed / MIB:,.0f} MiB, and {free / MIB:,.0f} MiB are free in GPU {device.index}. "
            "Use loader vectorized, which copies each batch, or more memory."
        )


def device_loader_bytes(
    data: Prepared, training: Training, schedule: Schedule, device: torch.device
) -> int:
    """Lower bound of the bytes that one rank holds at once: the data, and an epoch's order while it
    is computed, or afterwards with the rows drawn from it."""
    drawn = positives_at_once(schedule, device)
    row = 8 + 8 * (1 + training.negatives) + 4 * len(data.manifest.context_columns)
    ordered = 8 * schedule.rows + row * drawn // schedule.world_size
    whole = sum(each.nbytes for each in _arrays(data))
    return whole + max(order_bytes(schedule.rows), ordered)


def positives_at_once(schedule: Schedule, device: torch.device) -> int:
    """Maximum number of positives drawn at once, over all ranks."""
    return min(schedule.rows, max(schedule.batch, _at_once(device)))


def _at_once(device: torch.device) -> int:
    return ON_CPU if device.type == "cpu" else ON_GPU


def _arrays(data: Prepared) -> list[NDArray[Any]]:
    return [
        data.train_users,
        data.train_items,
        data.train_rows["numbers"],
        data.train_rows["small"],
        data.positives_indptr,
        data.positives,
    ]


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
