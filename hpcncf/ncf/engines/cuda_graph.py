"""Steps of one fixed size, compiled or captured as a CUDA graph.

A graph repeats the same operations on the same memory. So a step takes its rows from a window that
stays where it is, at a position that the device advances, and the device counts the steps. Not yet
run on a GPU: tests call the same functions on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from hpcncf.job.spec import Training
from hpcncf.ncf.batches import BatchRows, BatchWindow, Resident
from hpcncf.ncf.engines.reference import CompiledStep
from hpcncf.ncf.engines.row_optimizers import StepCounter
from hpcncf.remedies.idle_rows import MAX_SINGLE_STEP

CAPTURE_WARMUPS: Final = 3  # cuBLAS and the allocator set up their memory, which a capture may not


class CapturedStep:
    """A training step that is called a few times, then captured, then replayed. A CPU, which has no
    graphs, calls it each time."""

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
            self._graph = self._graph or self._capture()
            self._graph.replay()

    def _warm_up(self) -> None:
        """On the stream to be captured: cuBLAS keeps memory per stream."""
        current = torch.cuda.current_stream()
        assert self._stream is not None
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._step()
        current.wait_stream(self._stream)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Computes nothing yet. Other threads, such as a monitor's, may still call CUDA."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._step()
        return graph


class FixedSizeStep:
    """Whole batches of a run of one rank. `step` takes a batch of users, items and context, and
    reads nothing else on the host that changes between steps."""

    def __init__(
        self,
        step: Callable[[Tensor, Tensor, Tensor], None],
        counter: StepCounter,
        training: Training,
        device: torch.device,
    ) -> None:
        compiles = training.compile == "inductor"
        self._step = CompiledStep(step, training) if compiles else step
        self._counter, self._batch = counter, training.batch_over_ranks(1)
        self._window: BatchWindow | None = None
        self._captured: CapturedStep | None = None
        if training.cuda_graph:
            self._captured = CapturedStep(lambda: self._step_on_device(None), device)

    def batches(self, resident: Resident, epoch: int, steps: range) -> Iterator[BatchRows | None]:
        """Yields None for a whole batch, which is in the window."""
        if self._window is None:
            self._window = resident.window()
        return self._window.steps(resident.draw(epoch, steps))

    def accepts(self, batch: Sequence[Tensor] | None) -> bool:
        """Whether it is a whole batch, after the first ten steps, whose operations differ."""
        whole = batch is None or len(batch[0]) == self._batch
        return whole and self._counter.step >= MAX_SINGLE_STEP

    def run(self, batch: Sequence[Tensor] | None) -> None:
        self._counter.advance_device()
        if self._captured:
            self._captured()
        else:
            self._step_on_device(batch)

    def next_batch(self) -> BatchRows:
        assert self._window
        return self._window.next_batch()

    def _step_on_device(self, batch: Sequence[Tensor] | None) -> None:
        with self._counter.counted_on_device():
            self._step(*(batch or self.next_batch()))
