"""Some steps of any engine on given data, in floats or doubles, for tests that compare engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hpcncf.data.prepared import PreparedData
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.distributed import seed_dropout
from hpcncf.ncf.engines import base
from hpcncf.ncf.engines.base import Engine, EngineInputs
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.step_clock import StepClock

POSITIVES = 8
"""Of a step: so few that most rows of a large table idle for long."""


def trained(
    data: PreparedData, steps: int, dtype: torch.dtype, sizes: Model | None = None, **settings: Any
) -> dict[str, Tensor]:
    """The parameters after so many steps of the first epoch, settled."""
    torch.set_num_threads(1)
    training, sizes = Training(global_batch_size=POSITIVES, **settings), sizes or Model()
    schedule = Schedule(data.manifest.train_rows, POSITIVES)
    start = model.initial_model(data.manifest, sizes, training.seed).to(dtype)
    clock, ground = StepClock(steps, schedule.steps), EngineInputs(data, sizes, schedule, threads=1)
    made: Engine = base.build_engine(start, training, 1, torch.device("cpu"), clock, ground)
    seed_dropout(training.seed, 0, 0)
    loader = RankLoader(data, training, schedule)
    batches = in_dtype(made.batches(loader, 0, range(steps)), dtype)
    for step in range(steps):
        made.step(batches, schedule.positives(step) * (1 + training.negatives))
    made.settle()
    return {name: each.detach().clone() for name, each in made.model.named_parameters()}


def in_dtype(batches: Iterator[Any], dtype: torch.dtype) -> Iterator[Any]:
    """The context as the model wants it; an engine that draws for itself converts it itself."""
    for batch in batches:
        parts = [
            each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each
            for each in batch
        ]
        yield type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)


def furthest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference of two parameters."""
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in theirs)


def typical(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The root of the mean square of all parameters' differences."""
    each = [(ours[name].double() - theirs[name].double()).reshape(-1) for name in theirs]
    return float(torch.cat(each).square().mean().sqrt())
