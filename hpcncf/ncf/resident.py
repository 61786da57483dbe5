"""All training data on the device that trains, and batches made there: nothing is copied in a step.

Tested on CPUs; not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcncf.errors import HpcncfError
from hpcncf.ncf import device_sampling, fitting
from hpcncf.ncf.captured import Window
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.instances import Rows, Schedule
from hpcncf.spec import Training

MIB: Final = 2**20
# Positives drawn at once, of several steps where these are short: a GPU's time for so few numbers
# is that of starting its some 300 operations, and a CPU's cache holds no more.
ON_GPU: Final = 2**18
ON_CPU: Final = 2**12


class Resident:
    """The rows of one rank. Of an epoch it holds the whole order, 8 bytes a row."""

    def __init__(
        self, data: Prepared, training: Training, schedule: Schedule, device: torch.device
    ) -> None:
        self._training, self._schedule, self._device = training, schedule, device
        self._items = data.manifest.items
        self._most = int(np.diff(data.positives_indptr).max(initial=0))
        self._users, self._own, self._numbers, self._small, self._indptr, self._positives = (
            torch.from_numpy(np.array(each)).to(device) for each in _arrays(data)
        )

    def rows(self, epoch: int, steps: range) -> Iterator[Rows]:
        for lengths, parts in self.drawn(epoch, steps):
            yield from zip(*(torch.split(part, lengths) for part in parts), strict=True)

    def drawn(self, epoch: int, steps: range) -> Iterator[tuple[list[int], Rows]]:
        """Of several steps at once: how many positives each has, and their rows one after
        another."""
        schedule = self._schedule
        order = device_sampling.epoch_order(self._training.seed, epoch, schedule.rows, self._device)
        at_once = max(1, _at_once(self._device) // schedule.batch)
        for first in range(steps.start, steps.stop, at_once):
            some = range(first, min(first + at_once, steps.stop))
            bounds = [schedule.positions(step) for step in some]
            mine = self._rows_at(order, bounds)
            lengths = [stop - start for start, stop in bounds]
            yield lengths, self._gather(epoch, mine)

    def _rows_at(self, order: Tensor, bounds: list[tuple[int, int]]) -> Tensor:
        if self._schedule.world_size == 1:  # no gaps: a slice, not one for each of many steps
            return order[bounds[0][0] : bounds[-1][1]]
        return torch.cat([order[start:stop] for start, stop in bounds])

    def window(self) -> Window:
        """For what `drawn` gives; of one rank."""
        most = drawn_at_once(self._schedule, self._device)
        return Window(self._schedule.batch, most, self._device)

    def _gather(self, epoch: int, rows: Tensor) -> Rows:
        training = self._training
        users = self._users.index_select(0, rows).long()
        drawn = device_sampling.negatives(
            *(training.seed, epoch, rows, users, self._indptr, self._positives),
            *(self._items, training.negatives, self._most),
        )
        own = self._own.index_select(0, rows)[:, None]
        numbers, small = (each.index_select(0, rows) for each in (self._numbers, self._small))
        context = torch.cat([numbers, small.float()], dim=1)
        return users, torch.cat([own, drawn], dim=1), context


def check_resident(
    data: Prepared, training: Training, schedule: Schedule, device: torch.device, ranks: int
) -> None:
    """Raises HpcncfError where `loader: device` surely finds no room for the data of `ranks` ranks
    of this node."""
    if training.loader == "device":
        free, whose, sharing = _room(device, ranks)
        check_room(needed(data, training, schedule, device) * sharing, sharing, free, whose)


def needed(data: Prepared, training: Training, schedule: Schedule, device: torch.device) -> int:
    """Bytes that one rank surely holds at once: the data, beside them an epoch's order while it is
    made, or, made, with the rows drawn from it."""
    drawn = drawn_at_once(schedule, device)
    row = 8 + 8 * (1 + training.negatives) + 4 * len(data.manifest.context_columns)
    ordered = 8 * schedule.rows + row * drawn // schedule.world_size
    whole = sum(each.nbytes for each in _arrays(data))
    return whole + max(device_sampling.order_bytes(schedule.rows), ordered)


def drawn_at_once(schedule: Schedule, device: torch.device) -> int:
    """Positives of all ranks, at most."""
    return min(schedule.rows, max(schedule.batch, _at_once(device)))


def check_room(needed: int, ranks: int, free: int, whose: str) -> None:
    if needed > free:
        raise HpcncfError(
            f"training.loader device: all training data take at least {needed / MIB:,.0f} MiB, of "
            f"{ranks} rank{'s' * (ranks != 1)}, and {free / MIB:,.0f} MiB are free in {whose}: "
            "use loader vectorized, which copies each batch, or more memory"
        )


def _room(device: torch.device, ranks: int) -> tuple[int, str, int]:
    """Bytes free, where, and how many ranks share them."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free, f"GPU {device.index}", -(-ranks // torch.cuda.device_count())
    there, whose = fitting.available()
    return int(there), whose, ranks


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
