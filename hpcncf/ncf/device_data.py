"""Training data on the device, batches copied to it, and whether data and model fit.

Tested on CPUs; not yet run on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.spec import Training
from hpcncf.job.validate import GIB, model_bytes
from hpcncf.monitor.cgroup import memory_limit
from hpcncf.ncf.data.manifest import Manifest
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.device_sampling import epoch_order, negatives, order_bytes
from hpcncf.ncf.instances import BatchRows, Schedule


def check_model_memory(run: Run, manifest: Manifest, ranks: int) -> None:
    """Raises HpcncfError if the models of this node's `ranks` do not fit into its memory."""
    assert run.training is not None
    assert run.model is not None
    if run.training.device_for(run.resources) == "cuda":
        return
    sizes = (manifest.users, manifest.items, len(manifest.context_columns))
    needed = model_bytes(run.training, run.model, *sizes)
    there, whose = available_memory()
    if needed * ranks > there:
        raise HpcncfError(
            f"model: parameters and optimizer state for {manifest.users:,} users and "
            f"{manifest.items:,} items take at least {needed / GIB:.1f} GiB on each of {ranks} "
            f"{'ranks' if ranks > 1 else 'rank'} of this node, and {whose} is "
            f"{there / GIB:.1f} GiB. Use narrower widths in model, or more memory."
        )


def available_memory() -> tuple[float, str]:
    """Maximum bytes that this process may use, and what sets the limit."""
    node = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = memory_limit()
    if limit is not None and limit.value * 2**20 < node:
        return limit.value * 2**20, "its cgroup's limit"
    return node, "the node's memory"


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


def copy_warnings(training: Training, device: torch.device) -> list[str]:
    """Settings without effect on this device."""
    if device.type != "cpu":
        return []
    idle = {
        "pin_memory": training.pin_memory,
        "non_blocking": not training.non_blocking,
        "prefetch_to_device": training.prefetch_to_device,
    }
    return [
        f"training.{name} has no effect: it is for copies to a GPU, and this run trains on a CPU"
        for name, given in idle.items()
        if given
    ]


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
            mine = self._rows_at(order, bounds)
            lengths = [stop - start for start, stop in bounds]
            yield lengths, self._gather(epoch, mine)

    def _rows_at(self, order: Tensor, bounds: list[tuple[int, int]]) -> Tensor:
        if self._schedule.world_size == 1:  # one slice instead of one per step
            return order[bounds[0][0] : bounds[-1][1]]
        return torch.cat([order[start:stop] for start, stop in bounds])

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
    if training.loader == "device" and device.type != "cpu":
        free, whose, sharing = _gpu_room(device, ranks)
        check_device_room(
            device_loader_bytes(data, training, schedule, device) * sharing, sharing, free, whose
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


def check_device_room(needed: int, ranks: int, free: int, whose: str) -> None:
    if needed > free:
        raise HpcncfError(
            f"training.loader device: the training data of {ranks} rank{'s' * (ranks != 1)} take "
            f"at least {needed / MIB:,.0f} MiB, and {free / MIB:,.0f} MiB are free in {whose}. "
            "Use loader vectorized, which copies each batch, or more memory."
        )


def _gpu_room(device: torch.device, ranks: int) -> tuple[int, str, int]:
    """Free bytes, the GPU, and the number of ranks that share it."""
    free, _ = torch.cuda.mem_get_info(device)
    return free, f"GPU {device.index}", -(-ranks // torch.cuda.device_count())


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
