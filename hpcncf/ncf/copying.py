"""Batches on their way from the loader to the device that trains on them.

On a CPU, and with loader `device`, they are where they are needed, and nothing here does anything.
Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hpcncf.spec import Training

Tensors = Sequence[Tensor]


def on_device(
    batches: Iterator[Tensors], training: Training, device: torch.device
) -> Iterator[Tensors]:
    """The same tensors, in order, on the device; its current stream may use them."""
    if device.type == "cpu" or training.loader == "device":
        return batches
    if training.prefetch_to_device:
        return _ahead(batches, training, device)
    return (_copied(each, training, device) for each in batches)


def _copied(batch: Tensors, training: Training, device: torch.device) -> Tensors:
    pinned = [each.pin_memory() for each in batch] if training.pin_memory else batch
    return [each.to(device, non_blocking=training.non_blocking) for each in pinned]


def _ahead(
    batches: Iterator[Tensors], training: Training, device: torch.device
) -> Iterator[Tensors]:
    """The copy of the next batch runs beside the work on this one."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def started() -> Tensors | None:
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(stream):
            return _copied(batch, training, device)

    following = started()
    while following is not None:
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        for each in following:
            each.record_stream(current)  # its memory is not given away while this stream reads it
        ready, following = following, started()
        yield ready


def warnings_copying(training: Training, device: torch.device) -> list[str]:
    """Settings that do nothing where a run trains."""
    if device.type != "cpu":
        return []
    idle = {
        "pin_memory": training.pin_memory,
        "non_blocking": not training.non_blocking,
        "prefetch_to_device": training.prefetch_to_device,
    }
    return [
        f"training.{name} has no effect: it is about copies to a GPU, and this run trains on a CPU"
        for name, given in idle.items()
        if given
    ]
