"""What an engine is, and which one a run uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from hpcncf.job.spec import Model, Training
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines.reference import Reference
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.evaluate import Candidates
from hpcncf.ncf.instances import Schedule
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync import rows
from hpcncf.ncf.sync.local_sgd import MESSAGE_CAPACITY
from hpcncf.ncf.sync.on_device import DeviceTransport
from hpcncf.ncf.sync.shared_memory import open_transport, uses_nccl
from hpcncf.ncf.sync.transport import CountedTransport, Transport
from hpcncf.worker.environment import Place


class Engine(Protocol):
    """Takes the training's steps, one after another, and laps each one's phases on the clock."""

    @property
    def model(self) -> NeuMF:
        """Its parameters are the engine's own: current after every step, but for rows that
        `settle` has not yet caught up."""

    @property
    def loss(self) -> Tensor:
        """Summed over this rank's instances so far; float64, filled anew for each epoch."""

    def batches(self, loader: Loader, epoch: int, steps: range) -> Iterator[Any]:
        """What `step` takes, in the form that suits the engine."""

    def step(
        self, batches: Iterator[Any], instances: int, most: int = 1
    ) -> tuple[float, list[int]]:
        """Take the next batch, of `instances` over the ranks that take the step together; add its
        loss to `loss`. Where steps are short, more of them, up to `most` of as many instances: all
        but the last are ended on the clock.

        Returns the seconds waited for the first, and this rank's instances of each step taken.
        """

    def settle(self) -> None:
        """Catch every row up to the last step. The trainer does it at the end of each epoch and
        of the training and nowhere else: where it is done is part of what is computed."""

    def average(self) -> None:
        """Go on from the mean over all ranks, which took as many steps, each of its own."""

    def ranks(
        self, data: Prepared, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        """Of test rows first to last, by the settled parameters: how many candidates do not score
        strictly less than the held-out item, int64. In parts of a second or less: a signal that
        stops the run is heard between them."""

    def state(self) -> dict[str, Any]:
        """Tensors and numbers that, with the model's parameters as they are, settled or not, make
        the next steps the same to the last bit."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from such a state; the parameters that belong to it are in the model already."""


@dataclass(frozen=True)
class EngineInputs:
    """What an engine stands on, beside the model: one that draws its own instances, all of it."""

    data: Prepared
    sizes: Model
    schedule: Schedule
    threads: int
    transport: Transport | DeviceTransport | None = None
    """To the other ranks, where they exchange rows."""


def with_transport(
    ground: EngineInputs,
    model: NeuMF,
    training: Training,
    place: Place,
    device: torch.device,
    clock: StepClock,
) -> EngineInputs:
    """With a transport where the ranks exchange rows; each of them has to call this."""
    if training.engine == "reference" or place.world_size == 1:
        return ground
    if uses_nccl(device):
        return replace(ground, transport=DeviceTransport(clock.sent))
    size = MESSAGE_CAPACITY if training.sync == "local_sgd" else _message(ground, model, training)
    return replace(ground, transport=CountedTransport(open_transport(place, size, device), clock))


def _message(ground: EngineInputs, model: NeuMF, training: Training) -> int:
    """Bytes of the longest one of a step."""
    if training.engine == "rowwise":
        return rows.row_message_capacity(model, ground.schedule, training.negatives)
    from hpcncf.ncf.engines.native.engine import most_positives
    from hpcncf.ncf.engines.native.kernel import message_capacity

    context, most = ground.data.manifest.context_columns, most_positives(ground.schedule)
    doubles = model.predict_layer.weight.dtype == torch.float64
    return message_capacity(ground.sizes, training, len(context), most, doubles)


def build_engine(
    model: NeuMF,
    training: Training,
    world_size: int,
    device: torch.device,
    clock: StepClock,
    ground: EngineInputs | None = None,
) -> Engine:
    """The engine that the settings name, which takes over the model's parameters.

    Raises NotBuilt where the native one is asked for and was not compiled.
    """
    if training.engine == "native":
        from hpcncf.ncf.engines.native.engine import (
            Native,  # where it was not built, nobody needs it
        )

        assert ground is not None
        assert not isinstance(ground.transport, DeviceTransport)
        return Native(
            *(model, ground.data, ground.sizes, training, ground.schedule, ground.threads, clock),
            transport=ground.transport,
        )
    if training.engine == "rowwise":
        transport = ground.transport if ground else None
        return Rowwise(model, training, device, clock, transport)
    return Reference(model, training, world_size, device, clock)
