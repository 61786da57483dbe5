"""The interface of an engine, and the engine that a run uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from hpcncf.data.prepared import PreparedData
from hpcncf.job.spec import Model, Training
from hpcncf.launcher.environment import Place
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.engines.reference import ReferenceEngine
from hpcncf.ncf.engines.rowwise import RowwiseEngine
from hpcncf.ncf.evaluate import Candidates
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync import (
    Transport,
    row_message_capacity,
)


class Engine(Protocol):
    """Takes training steps one after another and records their phases on the step clock."""

    @property
    def model(self) -> NeuMF:
        """The model, whose parameters the engine updates in place.

        They are current after every step, except for rows that `settle` has yet to catch up.
        """

    @property
    def loss(self) -> Tensor:
        """Sum of the losses of this rank's instances in the epoch so far, float64.

        The trainer resets it.
        """

    def batches(self, loader: RankLoader, epoch: int, steps: range) -> Iterator[Any]:
        """Yield the inputs of `step` for the given steps of an epoch, in the engine's own form."""

    def step(
        self, batches: Iterator[Any], instances: int, most: int = 1
    ) -> tuple[float, list[int]]:
        """Take a training step on the next batch and add its loss to `loss`.

        `instances` counts those of all ranks in the step. An engine with short steps may take
        up to `most` equal steps in a call; it ends all but the last on the step clock.

        Returns the seconds waited for the first batch, and this rank's instances of each step.
        """

    def settle(self) -> None:
        """Bring every table row up to the last step.

        The trainer calls it only at the end of an epoch and of the training: the result depends
        on when it is called.
        """

    def ranks(
        self, data: PreparedData, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        """Yield, in parts, the rank of the held-out item of each test row `first` to `last`.

        A rank is the number of candidates that do not score strictly less than the item, int64,
        by the settled parameters. Each part takes a second at most: signals are handled between
        parts.
        """

    def state(self) -> dict[str, Any]:
        """State of the engine beside the model, as tensors and numbers, for a checkpoint.

        Together with the model's parameters, settled or not, it makes the next steps bitwise
        the same.
        """

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned; the model already has the matching parameters."""


@dataclass(frozen=True)
class EngineInputs:
    """Inputs beside the model; engine native, which draws its own instances, needs all."""

    data: PreparedData
    sizes: Model
    schedule: Schedule
    threads: int
    transport: Transport | None = None
    """To the other ranks, if they exchange rows."""


def with_transport(
    inputs: EngineInputs,
    model: NeuMF,
    training: Training,
    place: Place,
    clock: StepClock,
) -> EngineInputs:
    """Add a transport to the inputs if the ranks exchange rows; all ranks must call it."""
    if training.engine == "reference" or place.world_size == 1:
        return inputs
    size = _message_capacity(inputs, model, training)
    return replace(inputs, transport=Transport(size, clock.sent))


def _message_capacity(inputs: EngineInputs, model: NeuMF, training: Training) -> int:
    """Size in bytes of the longest message that a rank sends in a step."""
    if training.engine == "rowwise":
        return row_message_capacity(model, inputs.schedule, training.negatives)
    from hpcncf.ncf.engines.native import message_capacity, most_positives

    context, most = inputs.data.manifest.context_columns, most_positives(inputs.schedule)
    doubles = model.predict_layer.weight.dtype == torch.float64
    return message_capacity(inputs.sizes, training, len(context), most, doubles)


def build_engine(
    model: NeuMF,
    training: Training,
    world_size: int,
    device: torch.device,
    clock: StepClock,
    inputs: EngineInputs | None = None,
) -> Engine:
    """Build the engine that the settings name, which takes over the model's parameters.

    Raises NotBuilt if it is native and was not compiled.
    """
    if training.engine == "native":
        from hpcncf.ncf.engines.native import NativeEngine

        assert inputs is not None
        return NativeEngine(
            *(model, inputs.data, inputs.sizes, training, inputs.schedule, inputs.threads, clock),
            transport=inputs.transport,
        )
    if training.engine == "rowwise":
        transport = inputs.transport if inputs else None
        return RowwiseEngine(model, training, clock, transport)
    return ReferenceEngine(model, training, world_size, device, clock)
