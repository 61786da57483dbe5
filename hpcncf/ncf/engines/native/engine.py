"""Engine native as a rank uses it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from ctypes import c_double
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hpcncf.job.spec import Model, Training
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines.native.kernel import NO_SPAN, Kernel
from hpcncf.ncf.engines.native.library import Span
from hpcncf.ncf.evaluate import Candidates
from hpcncf.ncf.instances import Schedule
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync.local_sgd import average_engine
from hpcncf.ncf.sync.transport import Transport

PAD = 8
MAX_PAIRS_PER_CALL = 2**23  # pairs in a call, which no signal interrupts: tenths of a second
CALL_S: Final = 0.01
"""Steps of so many seconds are taken in one call: what Python does between two finds none of its
code and data in the caches, and takes as long as a tenth or two of a step."""


def padded_width(width: int) -> int:
    return -(-width // PAD) * PAD


class Native:
    """Any number of threads, no dropout. It draws its own instances. Several ranks exchange their
    gradients in each step, or, with `sync: local_sgd`, go on from their mean now and then."""

    def __init__(
        self,
        model: NeuMF,
        data: Prepared,
        sizes: Model,
        training: Training,
        schedule: Schedule,
        threads: int,
        clock: StepClock,
        build: str | None = None,
        transport: Transport | None = None,
    ) -> None:
        """The model's parameters become the engine's. One of doubles is trained in doubles."""
        doubles = model.predict_layer.weight.dtype == torch.float64
        self.model, self.clock, self._schedule = model, clock, schedule
        self._transport, self._apart = transport, training.sync == "local_sgd"
        self.loss = torch.zeros((), dtype=torch.float64)
        same_memory: Any = self.loss.numpy()
        self._loss = c_double.from_buffer(same_memory)
        self._at_once = 1
        most = most_positives(schedule)
        self.kernel = Kernel(data, sizes, training, threads, most, doubles, build)
        self._layers = KernelLayers(self.kernel, model)
        self._layers.write()
        view_kernel_tables(model, self.kernel)
        if self._apart:
            self.kernel.watch()

    def batches(
        self,
        loader: Loader,  # noqa: ARG002  it draws its own
        epoch: int,
        steps: range,
    ) -> Iterator[tuple[Span, Span]]:
        """Each step's positions of the epoch's order, and those of the step after it."""
        spans = [Span(epoch, *self._schedule.positions(step)) for step in steps]
        return zip(spans, [*spans[1:], NO_SPAN], strict=True)

    def step(
        self, batches: Iterator[tuple[Span, Span]], instances: int, most: int = 1
    ) -> tuple[float, list[int]]:
        """Nothing is waited for."""
        if self._transport and not self._apart:
            span, following = next(batches)
            self._loss.value += self._together(self._transport, span, 1 / instances, following)
            taken = [span]
        else:
            taken = self._several(list(islice(batches, min(most, self._at_once))), 1 / instances)
        self.clock.lap("fused")
        return 0.0, [self._instances(span) for span in taken]

    def _instances(self, span: Span) -> int:
        positives: int = span.stop - span.start
        return positives * (1 + self.kernel.negatives)

    def _several(self, pairs: list[tuple[Span, Span]], scale: float) -> list[Span]:
        """The last of these steps is still to be ended."""
        spans = [span for span, _ in pairs]
        began = time.perf_counter()
        ends = self.kernel.steps_on([*spans, pairs[-1][1]], scale, self._loss)
        for span, end in zip(spans[:-1], ends[:-1], strict=True):
            self.clock.lap("fused", until=began + end)
            self.clock.end_step(self._instances(span))
        self._at_once = max(1, min(2 * len(spans), int(CALL_S * len(spans) / max(ends[-1], 1e-9))))
        return spans

    def _together(self, transport: Transport, span: Span, scale: float, following: Span) -> float:
        loss, size = self.kernel.gradients(span, scale, transport.slot(), following)
        self.clock.lap("fused")
        messages = transport.exchange(size)
        self.clock.lap("sync")
        self.kernel.apply(messages)
        return loss

    def average(self) -> None:
        assert self._transport
        average_engine(self, self._transport)

    def touched_rows(self) -> Tensor:
        return torch.from_numpy(self.kernel.touched_rows())

    def read_state(self, ids: Tensor) -> Tensor:
        rows = self.kernel.take_rows(ids.numpy())
        return torch.from_numpy(np.concatenate([*self.kernel.dense, rows.reshape(-1)]))

    def write_state(self, ids: Tensor, state: Tensor) -> None:
        kernel, values = self.kernel, state.numpy()
        size = len(kernel.dense[0])
        for which, mine in enumerate(kernel.dense):
            mine[:] = values[which * size : (which + 1) * size]
        kernel.put_rows(ids.numpy(), values[len(kernel.dense) * size :].reshape(len(ids), -1))

    def settle(self) -> None:
        self.kernel.settle()
        self._layers.read()

    def ranks(
        self, data: Prepared, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        """What items add to layer 1 is computed anew for each part: hundredths of its time."""
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
        """Views, so that a checkpoint that holds the model too has the tables once."""
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
    """Of a step, on the rank that has most."""
    return -(-min(schedule.batch, max(1, schedule.rows)) // schedule.world_size)


def view_kernel_tables(model: NeuMF, kernel: Kernel) -> None:
    """Make the model's embeddings views of the kernel's tables, with the values they have."""
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
        """The model's values into the kernel."""
        for mine, theirs in self._pairs:
            values = theirs.detach().numpy()
            mine[:] = values[:, self._order] if mine is self._first else values

    @torch.no_grad()
    def read(self) -> None:
        """The kernel's values into the model."""
        for mine, theirs in self._pairs:
            values = theirs.detach().numpy()
            if mine is self._first:
                values[:, self._order] = mine
            else:
                values[:] = mine
