"""Capture a step as a CUDA graph, with its counters on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from hpcncf.ncf.engines.idle_rows import STEADY_FROM_STEP, bias_corrections
from hpcncf.ncf.instances import BatchRows

# A step that is captured as a graph or compiled must not read them on the host: what stood
# there once
# would hold for every step after it. There it reads tensors, which it moves on itself. The
# host's own
# count goes on beside them, so that nobody has to ask the device.

Rate = float | Tensor


class StepCounter:
    """Of the rows and the layers that one engine moves together."""

    def __init__(self, lr: float, of_device: Tensor | None = None) -> None:
        """`of_device`: where the device is to count, too, a tensor of the type and on the device of
        what is moved."""
        self.lr, self.step = lr, 0
        self.on_device = False
        """Whether `taken` and `rates` are the device's."""
        self._now_is = 0
        if of_device is not None:
            self._now = torch.zeros(1, dtype=torch.int64, device=of_device.device)
            self._table = _rates(lr).to(of_device)

    @property
    def current(self) -> int | Tensor:
        """Steps so far; of the device [1]."""
        return self._now if self.on_device else self.step

    def advance(self) -> None:
        """The next step is being taken."""
        if self.on_device:
            self._now.add_(1)
        else:
            self.step += 1

    def bias_corrections(self) -> tuple[Rate, Rate]:
        """lr * a_t and e_t (`idle.rates`) of the step that is being taken; of the device [1] each.

        The device's are those of step `idle.SETTLED` from there on, which differ by 1e-9 at most.
        """
        if not self.on_device:
            size, eps = bias_corrections(self.step)
            return self.lr * size, eps
        size_, eps_ = self._table.index_select(0, self._now.clamp(max=STEADY_FROM_STEP)).unbind(1)
        return size_, eps_

    def resume_after(self, step: int) -> None:
        """Go on from after this step."""
        self.step = step

    @contextmanager
    def counted_on_device(self) -> Iterator[None]:
        """What is done in it is one step, or captures one, by the device's count."""
        self.on_device = True
        try:
            yield
        finally:
            self.on_device = False

    def advance_device(self) -> None:
        """Before a step by the device's count: where the host took the last one, the device learns
        of it, without a wait."""
        if self._now_is != self.step:
            self._now.fill_(self.step)
        self.step += 1
        self._now_is = self.step


def _rates(lr: float) -> Tensor:
    """[SETTLED + 1, 2], float64; step 0 is never taken."""
    each = (bias_corrections(step) for step in range(1, STEADY_FROM_STEP + 1))
    found = [(0.0, 0.0), *((lr * size, eps) for size, eps in each)]
    return torch.tensor(found, dtype=torch.float64)


# A graph repeats the same operations on the same memory. So a step takes its rows from a window
# that
# stays where it is, at a position that the device moves on, and counts by `pace`. Not yet run
# on a
# GPU: tests call the same functions as they are.

CAPTURE_WARMUPS: Final = 3  # cuBLAS and the allocator make what they keep; a capture may not
Drawn = Iterator[tuple[list[int], BatchRows]]
"""Of several steps at once: how many positives each has, and their rows one after another."""


class BatchWindow:
    """The rows drawn last, for several steps of `batch` positives each."""

    def __init__(self, batch: int, most: int, device: torch.device) -> None:
        """`most`: positives drawn at once."""
        self._batch, self._most = batch, most
        self._places = torch.arange(batch, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._rows: list[Tensor] = []

    def steps(self, drawn: Drawn) -> Iterator[BatchRows | None]:
        """None for a whole batch, which `following` gives; the rows of a smaller one."""
        for lengths, rows in drawn:
            self._fill(rows)
            for step, length in enumerate(lengths):
                if length == self._batch:
                    yield None
                else:
                    users, items, context = (each[step * self._batch :] for each in rows)
                    yield users, items, context

    def next_batch(self) -> BatchRows:
        """The next whole batch: the same operations whichever it is."""
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


class CapturedStep:
    """A function that is called a few times, then captured, then replayed: each call is a step of
    the training. On a CPU, which has no graphs, it is called each time."""

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step, self._on_gpu = step, device.type == "cuda"
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]

    def __call__(self) -> None:
        self._calls += 1
        if not self._on_gpu:
            self._step()
        elif self._calls <= CAPTURE_WARMUPS:
            self._warm_up()
        else:
            self._replay()

    def _warm_up(self) -> None:
        """On the stream that will be captured: what cuBLAS keeps, it keeps for each stream."""
        current = torch.cuda.current_stream()
        assert self._stream is not None
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._step()
        current.wait_stream(self._stream)

    def _replay(self) -> None:
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Nothing is computed yet. Other threads, a monitor's for one, may go on calling CUDA."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._step()
        return graph
