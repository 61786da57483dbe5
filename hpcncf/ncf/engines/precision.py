"""Precision of products, loss scaling, and torch's optimizers in engine reference."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, SparseAdam

from hpcncf.job.spec import Training
from hpcncf.ncf.model import NeuMF

HALF_DTYPES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchLazyAdam:
    """SparseAdam for the tables, Adam for the layers: the usual pair, stepped as one."""

    def __init__(self, model: NeuMF, training: Training) -> None:
        layers = chain(*(each.parameters() for each in model.layers()))
        self._parts: dict[str, Optimizer] = {
            "tables": SparseAdam([each.weight for each in model.tables()], lr=training.lr),
            "layers": build_dense_optimizer(layers, training),
        }

    def step(self) -> None:
        for part in self._parts.values():
            part.step()

    def zero_grad(self) -> None:
        for part in self._parts.values():
            part.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(state[name])


def build_optimizer(model: NeuMF, training: Training) -> Optimizer | TorchLazyAdam:
    """Build torch's optimizer for all parameters, with sparse table gradients if set."""
    for table in model.tables():
        table.sparse = training.sparse
    if training.optimizer == "lazy_adam":
        return TorchLazyAdam(model, training)
    return build_dense_optimizer(model.parameters(), training)


def build_dense_optimizer(parameters: Iterable[nn.Parameter], training: Training) -> Optimizer:
    """Build SGD or Adam for parameters that get a gradient in every step."""
    if training.optimizer == "sgd":
        return SGD(parameters, lr=training.lr, weight_decay=training.weight_decay)
    # With neither, torch steps one tensor after another on a CPU, and foreach on a GPU.
    return Adam(
        parameters,
        lr=training.lr,
        weight_decay=training.weight_decay,
        foreach=True if training.adam == "foreach" else None,
        fused=True if training.adam == "fused" else None,
    )


class OptimizerSteps:
    """Takes an optimizer's steps, with loss scaling for `precision: float16`.

    There, gradients are of a scaled loss; a step with a gradient that is not finite is skipped, and
    the scale halved (torch's GradScaler).
    """

    def __init__(
        self, optimizer: Optimizer | TorchLazyAdam, training: Training, device: str
    ) -> None:
        self._optimizer = optimizer
        self._scaler: torch.amp.GradScaler | None = None
        if training.precision == "float16":
            self._scaler = torch.amp.GradScaler(device)
        self._skipped = 0

    @property
    def skipped(self) -> int | None:
        """Number of skipped steps; None if the precision never skips a step."""
        return None if self._scaler is None else self._skipped

    def scale(self, loss: Tensor) -> Tensor:
        return loss if self._scaler is None else self._scaler.scale(loss)

    def step(self) -> None:
        """Take an optimizer step and reset the gradients."""
        if self._scaler is None:
            self._optimizer.step()
        else:
            assert isinstance(self._optimizer, Optimizer)
            self._scaler.step(self._optimizer)
            before = self._scaler.get_scale()
            self._scaler.update()
            self._skipped += self._scaler.get_scale() < before
        self._optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        scaler = {} if self._scaler is None else {"scaler": self._scaler.state_dict()}
        return self._optimizer.state_dict() | scaler

    def load(self, state: dict[str, Any]) -> None:
        rest = dict(state)
        if self._scaler is not None:
            self._scaler.load_state_dict(rest.pop("scaler"))
        self._optimizer.load_state_dict(rest)
