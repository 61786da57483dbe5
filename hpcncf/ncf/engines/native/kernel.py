"""The C interface of the compiled step."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import byref, c_double, c_int32, c_int64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.job.validate import NATIVE_LAYERS
from hpcncf.ncf import sampling
from hpcncf.ncf.data.arrays import row_dtype
from hpcncf.ncf.data.buckets import SLOTS
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines.native.library import (
    OPTIMIZER_CODES,
    AdamSettings,
    Data,
    Settings,
    Span,
    TestRows,
    check_status,
    load_library,
)

NO_SPAN = Span(0, 0, 0)
Bytes = NDArray[np.uint8]


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


class MemoryOwner:
    """Frees the engine when neither a kernel nor an array of its memory is left."""


class Kernel:
    """Tables and dense layers in the library's memory, zero at first; one step at a time."""

    def __init__(
        self,
        data: Prepared,
        sizes: Model,
        training: Training,
        threads: int,
        most_positives: int,
        doubles: bool = False,
        build: str | None = None,
    ) -> None:
        """Raises NotBuilt where the library is not there, HpcncfError where data is not as it
        must be."""
        self._library = load_library(build)
        self._kind: type[Any] = np.float64 if doubles else np.float32
        self.sizes, self.context = sizes, len(data.manifest.context_columns)
        manifest, small = data.manifest, data.manifest.small_columns
        # The library keeps the addresses: so must we keep the arrays.
        self._kept: list[NDArray[Any]] = [
            np.ascontiguousarray(data.train_rows, dtype=row_dtype(self.context - small, small)),
            np.ascontiguousarray(data.positives_indptr, dtype=np.int64),
            np.ascontiguousarray(data.positives, dtype=np.int32),
            np.ascontiguousarray(data.buckets_indptr, dtype=np.int64),
            np.ascontiguousarray(data.buckets, dtype=np.uint16),
        ]
        rows, indptr, positives, bounds, table = self._kept
        if [len(each) for each in (rows, indptr, bounds)] != [
            manifest.train_rows,
            *(2 * [manifest.users + 1]),
        ] or table.shape != (len(table), SLOTS):
            raise HpcncfError(
                f"engine native: arrays of {[each.shape for each in self._kept]} do not fit "
                f"{manifest.title}"
            )
        settings = _settings(sizes, training, self.context, threads, most_positives)
        native_data = Data(
            *(manifest.users, manifest.items, manifest.train_rows, len(positives)),
            *(sampling.rows_per_block(manifest.train_rows), self.context, small),
            *(each.ctypes.data for each in (rows, indptr, positives)),
            *(len(table), bounds.ctypes.data, table.ctypes.data),
        )
        self.capacity = int(self._library.hpcncf_capacity(byref(settings), int(doubles)))
        self._engine = self._library.hpcncf_new(byref(settings), byref(native_data), int(doubles))
        if not self._engine:
            raise HpcncfError(f"engine native: {self._library.hpcncf_problem().decode()}")
        self._owner = MemoryOwner()
        weakref.finalize(self._owner, self._library.hpcncf_free, self._engine)
        self.users = self._rows(0, manifest.users)
        self.items = self._rows(1, manifest.items)
        self.dense = [self._dense(which) for which in range(3)]
        self.negatives = training.negatives
        self.row_numbers = int(self._library.hpcncf_row_numbers(self._engine))

    def _rows(self, which: int, count: int) -> NDArray[Any]:
        """A table [rows, stride]: parameters, both moments, the step they are of, unused rest."""
        stride = c_int64()
        address = self._library.hpcncf_rows(self._engine, which, byref(stride))
        return self._array(address, count * stride.value).reshape(count, stride.value)

    def _dense(self, which: int) -> NDArray[Any]:
        """The dense layers' parameters (0), first (1) and second (2) moments, flat."""
        count = c_int64()
        address = self._library.hpcncf_dense(self._engine, which, byref(count))
        return self._array(address, count.value)

    def _array(self, address: int, count: int) -> NDArray[Any]:
        memory: Any = (ctypes.c_byte * (count * np.dtype(self._kind).itemsize)).from_address(
            address
        )
        memory.owner = self._owner  # the array's memory is the engine's: it lives as long
        array: NDArray[Any] = np.frombuffer(memory, dtype=self._kind)
        return array

    @property
    def steps(self) -> int:
        return int(self._library.hpcncf_steps(self._engine))

    @steps.setter
    def steps(self, value: int) -> None:
        self._library.hpcncf_set_steps(self._engine, value)

    def step(self, span: Span, scale: float, following: Span = NO_SPAN) -> float:
        """One optimiser step; returns the sum of the losses. `scale` is 1 / instances of all ranks;
        the instances of `following` are drawn meanwhile."""
        loss = c_double()
        self.steps_on([span, following], scale, loss)
        return loss.value

    def steps_on(self, spans: Sequence[Span], scale: float, loss: c_double) -> list[float]:
        """A step on each of these but the last, whose instances are drawn meanwhile; adds the sums
        of the losses to `loss`. Returns the seconds from here to each step's end."""
        steps = len(spans) - 1
        ends = (c_double * steps)()
        status = self._library.hpcncf_step(
            self._engine, (Span * len(spans))(*spans), steps, scale, byref(loss), ends
        )
        check_status(self._library, status)
        return list(ends)

    def gradients(
        self, span: Span, scale: float, slot: Bytes, following: Span = NO_SPAN
    ) -> tuple[float, int]:
        """The first half of a step of several ranks: this one's gradients, as a message in `slot`,
        which starts at a cache line; returns the sum of the losses and the message's bytes."""
        loss, size = c_double(), c_int64()
        status = self._library.hpcncf_gradients(
            *(self._engine, byref(span), scale, byref(following)),
            *(slot.ctypes.data, slot.nbytes, byref(size), byref(loss)),
        )
        check_status(self._library, status)
        return loss.value, size.value

    def apply(self, messages: Sequence[Bytes]) -> None:
        """The second half: steps by the messages of all ranks, summed in the ranks' order, so that
        each rank's copy of the model stays the same to the bit. Raises HpcncfError, with nothing
        changed, where one is not as `gradients` writes it."""
        ranks = len(messages)
        addresses = (c_void_p * ranks)(*(each.ctypes.data for each in messages))
        sizes = (c_int64 * ranks)(*(each.nbytes for each in messages))
        status = self._library.hpcncf_apply(self._engine, addresses, sizes, ranks)
        check_status(self._library, status)

    def watch(self) -> None:
        """From now on `moved` knows which rows steps read."""
        check_status(self._library, self._library.hpcncf_watch(self._engine))

    def touched_rows(self) -> NDArray[np.int64]:
        """Ids of the rows that steps read since the last call, ascending: users, then items."""
        ids = np.empty(len(self.users) + len(self.items), dtype=np.int64)
        count = self._library.hpcncf_moved(self._engine, _pointer(ids, c_int64))
        return ids[:count].copy()

    def take_rows(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """All that steps change of these rows, brought to the last step [len(ids), n]."""
        rows = np.empty((len(ids), self.row_numbers), dtype=self._kind)
        status = self._library.hpcncf_take_rows(
            self._engine, _pointer(ids, c_int64), len(ids), rows.ctypes.data
        )
        check_status(self._library, status)
        return rows

    def put_rows(self, ids: NDArray[np.int64], rows: NDArray[Any]) -> None:
        """Go on from such rows, as of the last step; no id twice."""
        rows = np.ascontiguousarray(rows, dtype=self._kind)
        assert rows.shape == (len(ids), self.row_numbers)
        status = self._library.hpcncf_put_rows(
            self._engine, _pointer(ids, c_int64), len(ids), rows.ctypes.data
        )
        check_status(self._library, status)

    def settle(self) -> None:
        check_status(self._library, self._library.hpcncf_settle(self._engine))

    def draw(self, span: Span) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Rows [n], users [n] and items [n, 1 + negatives] of a step."""
        count = max(0, span.stop - span.start)
        rows = np.zeros(count, dtype=np.int64)
        users = np.zeros(count, dtype=np.int32)
        items = np.zeros((count, 1 + self.negatives), dtype=np.int32)
        status = self._library.hpcncf_draw(
            self._engine,
            byref(span),
            _pointer(rows, c_int64),
            _pointer(users, c_int32),
            _pointer(items, c_int32),
        )
        check_status(self._library, status)
        return rows, users, items

    def ranks(
        self,
        users: NDArray[Any],
        items: NDArray[Any],
        context: NDArray[Any],
        negatives: NDArray[Any] | None,
    ) -> NDArray[np.int32]:
        """How many candidates do not score strictly less than each row's own item: of its
        `negatives` [rows, n], or of all items but the user's other training items."""
        users, items = (np.ascontiguousarray(each, dtype=np.int32) for each in (users, items))
        context = np.ascontiguousarray(context, dtype=np.float32)
        if not len(users) == len(items) == len(context) or context.shape[1:] != (self.context,):
            raise HpcncfError("engine native: users, items and context of different lengths")
        width, address = 0, None
        if negatives is not None:
            negatives = np.ascontiguousarray(negatives, dtype=np.int32)
            width, address = negatives.shape[1], negatives.ctypes.data
        ranks = np.zeros(len(users), dtype=np.int32)
        addresses = [users.ctypes.data, items.ctypes.data, context.ctypes.data, address]
        test = TestRows(len(users), *addresses, width)
        status = self._library.hpcncf_evaluate(self._engine, byref(test), _pointer(ranks, c_int32))
        check_status(self._library, status)
        return ranks


def message_capacity(
    sizes: Model, training: Training, context: int, most_positives: int, doubles: bool = False
) -> int:
    """Bytes of the longest message of `gradients`: what ranks have to give each other room for,
    before there is an engine. Raises NotBuilt."""
    settings = _settings(sizes, training, context, 1, most_positives)
    return int(load_library().hpcncf_capacity(byref(settings), int(doubles)))


def _settings(
    sizes: Model, training: Training, context: int, threads: int, most_positives: int
) -> Settings:
    if sizes.dropout:
        raise HpcncfError(
            f"model.dropout {sizes.dropout:g}: engine native has no dropout; use engine rowwise, "
            "or 0"
        )
    if len(sizes.layers) > NATIVE_LAYERS:
        raise HpcncfError(f"model.layers: engine native takes at most {NATIVE_LAYERS}")
    return Settings(
        sizes.gmf_width,
        sizes.mlp_width,
        context,
        training.negatives,
        len(sizes.layers),
        threads,
        (ctypes.c_int * NATIVE_LAYERS)(*sizes.layers),
        OPTIMIZER_CODES[training.optimizer],
        AdamSettings(training.lr, 0.9, 0.999, 1e-8),
        training.seed,
        most_positives,
    )
