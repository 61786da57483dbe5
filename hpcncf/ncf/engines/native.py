"""Engine native: the C interface of the compiled step, and the engine as a rank uses it."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Iterator, Sequence
from ctypes import byref, c_double, c_int32, c_int64, c_void_p
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hpcncf.data import epoch_order
from hpcncf.data.arrays import row_dtype
from hpcncf.data.manifest import SLOTS
from hpcncf.data.prepared import PreparedData
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.native.builds import (
    NATIVE_LAYERS,
    OPTIMIZER_CODES,
    AdamSettings,
    EngineData,
    EngineSettings,
    Span,
    TestRows,
    check_status,
    load_library,
)
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.evaluate import Candidates
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync import Transport

NO_SPAN = Span(0, 0, 0)
Bytes = NDArray[np.uint8]


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


class MemoryOwner:
    """Frees the engine once no kernel and no array of its memory is left."""


class Kernel:
    """Tables and dense layers in the library's memory, zero at first; one step at a time."""

    def __init__(
        self,
        data: PreparedData,
        sizes: Model,
        training: Training,
        threads: int,
        most_positives: int,
        doubles: bool = False,
        build: str | None = None,
    ) -> None:
        """Allocate the tables and layers in the library's memory.

        Raises NotBuilt if the library is missing, HpcncfError if the arrays do not fit the
        manifest.
        """
        self._library = load_library(build)
        self._kind: type[Any] = np.float64 if doubles else np.float32
        self.sizes, self.context = sizes, len(data.manifest.context_columns)
        manifest, small = data.manifest, data.manifest.small_columns
        # The library keeps addresses, so these arrays must stay alive.
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
        native_data = EngineData(
            *(manifest.users, manifest.items, manifest.train_rows, len(positives)),
            *(epoch_order.rows_per_block(manifest.train_rows), self.context, small),
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

    def _rows(self, which: int, count: int) -> NDArray[Any]:
        """View the table of users (0) or items (1) in the library's memory [rows, stride].

        A row holds the parameters, both moments, the step that they belong to, and unused
        space.
        """
        stride = c_int64()
        address = self._library.hpcncf_rows(self._engine, which, byref(stride))
        return self._array(address, count * stride.value).reshape(count, stride.value)

    def _dense(self, which: int) -> NDArray[Any]:
        """View the dense layers' parameters (0), first (1) or second (2) moments, flat."""
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
        """Take one optimizer step; returns the sum of the losses.

        `scale` is 1 / instances of all ranks. The instances of `following` are drawn meanwhile.
        """
        loss = c_double()
        self.steps_on([span, following], scale, loss)
        return loss.value

    def steps_on(self, spans: Sequence[Span], scale: float, loss: c_double) -> list[float]:
        """Take a step on each span but the last, whose instances are only drawn ahead.

        Adds the sums of the losses to `loss`. Returns the seconds from the call to each step's
        end.
        """
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
        """Compute this rank's gradients of a step and write them as a message into `slot`.

        This is the first half of a step of several ranks. The slot starts at a cache line.
        Returns the sum of the losses and the message's size in bytes.
        """
        loss, size = c_double(), c_int64()
        status = self._library.hpcncf_gradients(
            *(self._engine, byref(span), scale, byref(following)),
            *(slot.ctypes.data, slot.nbytes, byref(size), byref(loss)),
        )
        check_status(self._library, status)
        return loss.value, size.value

    def apply(self, messages: Sequence[Bytes]) -> None:
        """Finish a step of several ranks with the gradients in the messages of all ranks.

        They are summed in the order of the ranks, so that each rank's copy of the model stays
        the same to the bit. Raises HpcncfError, with nothing changed, if a message was not
        written by `gradients`.
        """
        ranks = len(messages)
        addresses = (c_void_p * ranks)(*(each.ctypes.data for each in messages))
        sizes = (c_int64 * ranks)(*(each.nbytes for each in messages))
        status = self._library.hpcncf_apply(self._engine, addresses, sizes, ranks)
        check_status(self._library, status)

    def settle(self) -> None:
        check_status(self._library, self._library.hpcncf_settle(self._engine))

    def draw(self, span: Span) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Draw the instances of a step: rows [n], users [n] and items [n, 1 + negatives]."""
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
        """Rank each row's own item: the number of candidates that do not score strictly less.

        The candidates are `negatives` [rows, n]; with None all items but the user's other
        training items.
        """
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
    """Size in bytes of the longest message that `gradients` writes. Raises NotBuilt.

    No engine is needed to ask.
    """
    settings = _settings(sizes, training, context, 1, most_positives)
    return int(load_library().hpcncf_capacity(byref(settings), int(doubles)))


def _settings(
    sizes: Model, training: Training, context: int, threads: int, most_positives: int
) -> EngineSettings:
    if sizes.dropout:
        raise HpcncfError(
            f"model.dropout {sizes.dropout:g}: engine native has no dropout; use engine rowwise, "
            "or 0"
        )
    if len(sizes.layers) > NATIVE_LAYERS:
        raise HpcncfError(f"model.layers: engine native takes at most {NATIVE_LAYERS}")
    return EngineSettings(
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


PAD = 8
MAX_PAIRS_PER_CALL = 2**23  # pairs in a call, which no signal interrupts: tenths of a second
CALL_S: Final = 0.01
"""Steps that take about this long together are one call: between two calls Python finds none of its
code and data in the caches, and takes a tenth or two of a step."""


def padded_width(width: int) -> int:
    return -(-width // PAD) * PAD


class NativeEngine:
    """Engine that takes its steps in compiled C++, on any number of threads; without dropout.

    It draws its own instances. Several ranks exchange their gradients in each step.
    """

    def __init__(
        self,
        model: NeuMF,
        data: PreparedData,
        sizes: Model,
        training: Training,
        schedule: Schedule,
        threads: int,
        clock: StepClock,
        build: str | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Move the model's parameters into the kernel, which owns them from then on.

        A model of doubles is trained in doubles.
        """
        doubles = model.predict_layer.weight.dtype == torch.float64
        self.model, self.clock, self._schedule = model, clock, schedule
        self._transport = transport
        self.loss = torch.zeros((), dtype=torch.float64)
        same_memory: Any = self.loss.numpy()
        self._loss = c_double.from_buffer(same_memory)
        self._at_once = 1
        most = most_positives(schedule)
        self.kernel = Kernel(data, sizes, training, threads, most, doubles, build)
        self._layers = KernelLayers(self.kernel, model)
        self._layers.write()
        view_kernel_tables(model, self.kernel)

    def batches(
        self,
        loader: RankLoader,  # noqa: ARG002  it draws its own
        epoch: int,
        steps: range,
    ) -> Iterator[tuple[Span, Span]]:
        """Yield each step's span of the epoch's order, and the span of the following step.

        The last step is followed by an empty span.
        """
        spans = [Span(epoch, *self._schedule.positions(step)) for step in steps]
        return zip(spans, [*spans[1:], NO_SPAN], strict=True)

    def step(
        self, batches: Iterator[tuple[Span, Span]], instances: int, most: int = 1
    ) -> tuple[float, list[int]]:
        """Take steps on the next batches, several in a call if they are short.

        The time waited for input is always 0: the kernel draws its instances itself.
        """
        if self._transport:
            span, following = next(batches)
            slot = self._transport.slot()
            loss, size = self.kernel.gradients(span, 1 / instances, slot, following)
            self.clock.lap("fused")
            messages = self._transport.exchange(size)
            self.clock.lap("sync")
            self.kernel.apply(messages)
            self._loss.value += loss
            taken = [span]
        else:
            taken = self._several(list(islice(batches, min(most, self._at_once))), 1 / instances)
        self.clock.lap("fused")
        return 0.0, [self._instances(span) for span in taken]

    def _instances(self, span: Span) -> int:
        positives: int = span.stop - span.start
        return positives * (1 + self.kernel.negatives)

    def _several(self, pairs: list[tuple[Span, Span]], scale: float) -> list[Span]:
        """Take the steps in one call of the kernel; returns their spans.

        All steps but the last are ended on the step clock.
        """
        spans = [span for span, _ in pairs]
        began = time.perf_counter()
        ends = self.kernel.steps_on([*spans, pairs[-1][1]], scale, self._loss)
        for span, end in zip(spans[:-1], ends[:-1], strict=True):
            self.clock.lap("fused", until=began + end)
            self.clock.end_step(self._instances(span))
        self._at_once = max(1, min(2 * len(spans), int(CALL_S * len(spans) / max(ends[-1], 1e-9))))
        return spans

    def settle(self) -> None:
        self.kernel.settle()
        self._layers.read()

    def ranks(
        self, data: PreparedData, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        """Yield, in parts, the rank of the held-out item of each test row `first` to `last`.

        Each part computes the items' share of layer 1 again, which takes hundredths of its
        time.
        """
        sampled = candidates == "sampled"
        width = 1 + data.test_negatives.shape[1] if sampled else data.manifest.items
        step = max(1, MAX_PAIRS_PER_CALL // width)
        for at in range(first, last, step):
            part = slice(at, min(at + step, last))
            negatives = data.test_negatives[part] if sampled else None
            ranks = self.kernel.ranks(
                data.test_users[part], data.test_items[part], data.test_context[part], negatives
            )
            yield torch.from_numpy(ranks.astype(np.int64))

    def state(self) -> dict[str, Any]:
        """State of the engine: number of steps, and views of its tables and layers.

        They are views so that a checkpoint that also holds the model stores the tables only
        once.
        """
        kernel = self.kernel
        tables = {"users": kernel.users, "items": kernel.items}
        parts = {f"dense{which}": each for which, each in enumerate(kernel.dense)}
        self._layers.read()
        return {
            "steps": kernel.steps,
            **{name: torch.from_numpy(each) for name, each in {**tables, **parts}.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        kernel = self.kernel
        kernel.steps = state["steps"]
        for mine, name in ((kernel.users, "users"), (kernel.items, "items")):
            mine[:] = state[name].numpy()
        for which, mine in enumerate(kernel.dense):
            mine[:] = state[f"dense{which}"].numpy()
        self._layers.read()


def most_positives(schedule: Schedule) -> int:
    """Largest number of positives that a rank has in a step."""
    return -(-min(schedule.batch, max(1, schedule.rows)) // schedule.world_size)


def view_kernel_tables(model: NeuMF, kernel: Kernel) -> None:
    """Replace the model's embeddings by views of the kernel's tables, keeping their values."""
    mf, mlp = kernel.sizes.gmf_width, kernel.sizes.mlp_width
    at = padded_width(mlp)
    for table, name, columns in (
        (kernel.users, "MF_Embedding_User", slice(at, at + mf)),
        (kernel.items, "MF_Embedding_Item", slice(at, at + mf)),
        (kernel.users, "MLP_Embedding_User", slice(0, mlp)),
        (kernel.items, "MLP_Embedding_Item", slice(0, mlp)),
    ):
        embedding = getattr(model, name)
        table[:, columns] = embedding.weight.detach().numpy()
        embedding.weight = nn.Parameter(torch.from_numpy(table)[:, columns])


class KernelLayers:
    """The dense layers, which kernel and torch lay out each in its own way."""

    def __init__(self, kernel: Kernel, model: NeuMF) -> None:
        self._kernel = kernel
        linear = [each for each in model.MLP_layers if isinstance(each, nn.Linear)]
        mlp, context = kernel.sizes.mlp_width, kernel.context
        # The kernel has the context between the two embeddings: what a positive shares with its
        # negatives is then one matrix.
        columns = np.arange(2 * mlp + context)
        self._order = np.concatenate([columns[:mlp], columns[2 * mlp :], columns[mlp : 2 * mlp]])
        self._pairs: list[tuple[NDArray[Any], Tensor]] = []
        flat, at = kernel.dense[0], 0
        for depth, layer in enumerate(linear):
            ins, outs = layer.in_features, layer.out_features
            width = padded_width(outs)
            weights = flat[at : at + ins * width].reshape(ins, width)[:, :outs].T
            at += ins * width
            self._pairs.append((weights, layer.weight))
            self._pairs.append((flat[at : at + outs], layer.bias))
            at += width
            if depth == 0:
                self._first = weights
        mf, last, output = kernel.sizes.gmf_width, linear[-1].out_features, model.predict_layer
        parts = [slice(at, at + mf), slice(at + padded_width(mf), at + padded_width(mf) + last)]
        at += padded_width(mf) + padded_width(last)
        self._pairs.append((flat[parts[0]], output.weight[0, :mf]))
        self._pairs.append((flat[parts[1]], output.weight[0, mf:]))
        self._pairs.append((flat[at : at + 1], output.bias))

    def write(self) -> None:
        """Copy the dense layers' parameters from the model to the kernel."""
        for mine, theirs in self._pairs:
            values = theirs.detach().numpy()
            mine[:] = values[:, self._order] if mine is self._first else values

    @torch.no_grad()
    def read(self) -> None:
        """Copy the dense layers' parameters from the kernel to the model."""
        for mine, theirs in self._pairs:
            values = theirs.detach().numpy()
            if mine is self._first:
                values[:, self._order] = mine
            else:
                values[:] = mine
