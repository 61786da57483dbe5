"""The instances of a step on each rank, drawn on the host or on the device, and copied to it."""

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

from hpcncf.data import epoch_order, random_words
from hpcncf.data.arrays import possible_positives, unpack_context
from hpcncf.data.manifest import Manifest
from hpcncf.data.negatives import sample_negatives
from hpcncf.data.prepared import PreparedData
from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.spec import Training
from hpcncf.job.validate import GIB, model_bytes
from hpcncf.monitor.cgroup import memory_limit
from hpcncf.text import pluralize

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
    """Repeat user and context for each of a positive's instances, and label all instances."""
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
    """Positions of an epoch's order that each step has, over all ranks and on this one."""

    rows: int
    batch: int
    """Positives per step over all ranks."""
    rank: int = 0
    world_size: int = 1

    @property
    def steps(self) -> int:
        return -(-self.rows // self.batch)

    def positives(self, step: int) -> int:
        """Number of positives of a step over all ranks; fewer in an epoch's last step."""
        return min(self.batch, self.rows - step * self.batch)

    def equal_steps_from(self, step: int) -> int:
        """Number of consecutive steps from this one on with equally many positives, at least 1.

        Only an epoch's last step may have fewer positives.
        """
        return max(1, self.rows // self.batch - step)

    def positions(self, step: int) -> tuple[int, int]:
        """First and end position in the epoch's order of this rank's positives of a step.

        The range is empty if an epoch's last step has fewer positives than ranks.
        """
        start = step * self.batch
        return epoch_order.rank_shard(
            start, start + self.positives(step), self.rank, self.world_size
        )


class EpochOrder:
    """An epoch's order, computed in chunks: a chunk is cheap per row, a batch alone is not."""

    def __init__(self, seed: int, epoch: int, rows: int) -> None:
        self._seed, self._epoch, self._rows = seed, epoch, rows
        self._start, self._chunk = 0, np.empty(0, dtype=np.int64)

    def between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Training rows at positions `start` to `stop` (exclusive) of the epoch's order."""
        if start < self._start or stop > self._start + len(self._chunk):
            end = min(max(start + ORDER_CHUNK, stop), self._rows)
            self._chunk = epoch_order.epoch_rows(self._seed, self._epoch, start, end, self._rows)
            self._start = start
        return self._chunk[start - self._start : stop - self._start]


class InstanceSource:
    """The prepared arrays and the settings that decide an instance."""

    def __init__(self, data: PreparedData, training: Training) -> None:
        self.seed, self.negatives = training.seed, training.negatives
        self.items = data.manifest.items
        # Indexing a memmap makes a memmap each time; the plain array of the same pages does not.
        self.train_rows = np.asarray(data.train_rows)
        self.indptr = np.asarray(data.positives_indptr)
        self.positives = np.asarray(data.positives)
        bounds, table = np.asarray(data.buckets_indptr), np.asarray(data.buckets)
        self.suspected = partial(possible_positives, bounds, table)

    def gather(self, epoch: int, rows: NDArray[np.int64]) -> BatchRows:
        """Draw the negatives of training rows and return users, items and context.

        Users are [n], items [n, 1 + negatives] with the positive first, context [n, columns].
        """
        mine = self.train_rows.take(rows)  # whole: each is in one place of memory
        users = mine["user"].astype(np.int64)
        known = self.seed, epoch, rows, users, self.indptr, self.positives, self.items
        drawn = sample_negatives(*known, count=self.negatives, suspected=self.suspected)
        items = np.concatenate([mine["item"][:, None], drawn], axis=1)
        context = torch.from_numpy(unpack_context(mine))
        return torch.from_numpy(users), torch.from_numpy(items), context


def check_model_memory(run: Run, manifest: Manifest, ranks: int) -> None:
    """Check that the models of this node's ranks fit into its memory.

    Raises HpcncfError if they do not. Runs on GPUs are not checked.
    """
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
    """Yield the batches on the device, in order, ready for its current stream.

    On a CPU, and with loader `device`, they are there already and are returned as they are.
    """
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
    """Yield batches on the GPU, copying the next one while the current one is used."""
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
POSITIVES_AT_ONCE: Final = 2**18
"""Drawn together by loader `device`, for several steps if these are short: a GPU needs many numbers
to hide the start of the operations."""


class Resident:
    """Loader `device`: one rank's rows, whose order and negatives are drawn on the device itself.

    The host reads none of their values, so it never waits. Not yet measured on a GPU.

    The instances differ from those of the other loaders, which draw on the host. They are the same
    for the same seed and device, in a resumed run, too.
    """

    def __init__(
        self, data: PreparedData, training: Training, schedule: Schedule, device: torch.device
    ) -> None:
        self._training, self._schedule, self._device = training, schedule, device
        self._items = data.manifest.items
        self._most = int(np.diff(data.positives_indptr).max(initial=0))
        self._users, self._own, self._numbers, self._small, self._indptr, self._positives = (
            torch.from_numpy(np.array(each)).to(device) for each in _arrays(data)
        )
        self._generator = torch.Generator(device)

    def rows(self, epoch: int, steps: range) -> Iterator[BatchRows]:
        schedule = self._schedule
        # Of all ranks' positives, seeded alike: each rank takes its shard of one order.
        self._seed(random_words.ORDER, epoch, 0)
        order = torch.randperm(schedule.rows, generator=self._generator, device=self._device)
        at_once = max(1, POSITIVES_AT_ONCE // schedule.batch)
        for part in range(steps.start // at_once, -(-steps.stop // at_once)):
            # Drawn from the part's first step on, also where a resumed run begins in the middle.
            drawn = range(part * at_once, min((part + 1) * at_once, schedule.steps))
            bounds = [schedule.positions(step) for step in drawn]
            self._seed(random_words.NEGATIVES, epoch, part * schedule.world_size + schedule.rank)
            rows = self._gather(torch.cat([order[start:stop] for start, stop in bounds]))
            lengths = [stop - start for start, stop in bounds]
            batches = zip(*(torch.split(each, lengths) for each in rows), strict=True)
            yield from (rows for step, rows in zip(drawn, batches, strict=True) if step in steps)

    def _seed(self, purpose: int, epoch: int, number: int) -> None:
        high, low, *_ = random_words.philox_block(self._training.seed, purpose, epoch, number, 0)
        self._generator.manual_seed(high << 32 | low)

    def _gather(self, rows: Tensor) -> BatchRows:
        users = self._users.index_select(0, rows).long()
        shape = len(rows), self._training.negatives
        uniform = torch.rand(
            shape, generator=self._generator, device=self._device, dtype=torch.float64
        )
        first = self._indptr.index_select(0, users)[:, None]
        held = self._indptr.index_select(0, users + 1)[:, None] - first
        nth = (uniform * (self._items - held)).long()
        drawn = nth_absent(nth, self._positives, first, held, self._most)
        own = self._own.index_select(0, rows)[:, None]
        numbers, small = (each.index_select(0, rows) for each in (self._numbers, self._small))
        context = torch.cat([numbers, small.float()], dim=1)
        return users, torch.cat([own, drawn], dim=1), context


def nth_absent(nth: Tensor, positives: Tensor, first: Tensor, held: Tensor, most: int) -> Tensor:
    """Return the nth item (from 0) that is missing in positives[first : first + held].

    Those positives must be sorted.

    `most`: the largest `held`. The number of positives below the result is found bit by bit, from
    the highest; the number of rounds depends on no value of the device.
    """
    before, start = torch.zeros_like(nth), first - 1
    for bit in reversed(range(most.bit_length())):
        tried = before + (1 << bit)
        value = positives.take((start + tried).clamp(max=len(positives) - 1))
        before = torch.where((tried <= held) & (value - tried < nth), tried, before)
    return nth + before


def check_device_loader(
    data: PreparedData, training: Training, schedule: Schedule, device: torch.device, ranks: int
) -> None:
    """Check that the data of this node's ranks fit into GPU memory with `loader: device`.

    Raises HpcncfError if they certainly do not. On a CPU nothing is copied, and nothing is
    checked.
    """
    if training.loader != "device" or device.type == "cpu":
        return
    free, _ = torch.cuda.mem_get_info(device)
    sharing = -(-ranks // torch.cuda.device_count())
    needed = device_loader_bytes(data, training, schedule) * sharing
    if needed > free:
        raise HpcncfError(
            f"training.loader device: the training data of {pluralize(sharing, 'rank')} take at "
            f"least {needed / MIB:,.0f} MiB, and {free / MIB:,.0f} MiB are free in GPU "
            f"{device.index}. Use loader vectorized, which copies each batch, or more memory."
        )


def device_loader_bytes(data: PreparedData, training: Training, schedule: Schedule) -> int:
    """Lower bound in bytes of one rank's GPU memory with `loader: device`.

    It counts the data, an epoch's order, and the rows drawn from it at once.
    """
    drawn = min(schedule.rows, max(schedule.batch, POSITIVES_AT_ONCE))
    row = 8 + 8 * (1 + training.negatives) + 4 * len(data.manifest.context_columns)
    whole = sum(each.nbytes for each in _arrays(data))
    return whole + 8 * schedule.rows + row * drawn // schedule.world_size


def _arrays(data: PreparedData) -> list[NDArray[Any]]:
    return [
        data.train_users,
        data.train_items,
        data.train_rows["numbers"],
        data.train_rows["small"],
        data.positives_indptr,
        data.positives,
    ]
