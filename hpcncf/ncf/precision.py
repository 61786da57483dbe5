"""How exactly the layers' products are computed while training: TensorFloat-32, float16's scaler.

Evaluation computes in float32, whatever the training does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from hpcncf.errors import HpcncfError
from hpcncf.ncf.optimizers import LazyAdam
from hpcncf.spec import Training

FIRST_WITH_TF32: Final = (8, 0)
"""Compute capability of NVIDIA's Ampere."""
FIRST_WITH_WIDE_SUMS: Final = (2, 8)
"""Of torch's versions: a product of halves on a GPU may give float32."""


def check_precision(training: Training, device: torch.device) -> None:
    """Raises HpcncfError where this torch cannot compute as the settings say."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    halves = training.engine == "rowwise" and training.precision != "float32"
    if halves and device.type == "cuda" and version < FIRST_WITH_WIDE_SUMS:
        raise HpcncfError(
            f"training.precision {training.precision} with engine rowwise needs torch 2.8 or later,"
            f" whose products of halves have float32 sums; this is {torch.__version__}: use "
            "float32, or tf32: true"
        )


@contextmanager
def allowed(training: Training, device: torch.device) -> Iterator[None]:
    """What is queued in it may use TensorFloat-32, where the settings say so."""
    if not training.tf32 or device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def warnings_precision(training: Training, device: torch.device) -> list[str]:
    """What a setting does not do here."""
    if not training.tf32:
        return []
    if device.type != "cuda":
        return [
            "training.tf32 has no effect: TensorFloat-32 is a format of NVIDIA's GPUs, and this "
            "run trains on a CPU"
        ]
    if torch.cuda.get_device_capability(device) < FIRST_WITH_TF32:
        name = torch.cuda.get_device_name(device)
        return [f"training.tf32 has no effect: {name} is older than TensorFloat-32 (Ampere)"]
    return []


class Steps:
    """An optimizer's steps. With `precision: float16` its gradients are of a scaled loss, and a
    step with one that is not finite is skipped, and the scale halved (torch's GradScaler)."""

    def __init__(self, optimizer: Optimizer | LazyAdam, training: Training, device: str) -> None:
        self._optimizer = optimizer
        self._scaler: torch.amp.GradScaler | None = None
        if training.precision == "float16":
            self._scaler = torch.amp.GradScaler(device)
        self._skipped = 0

    @property
    def skipped(self) -> int | None:
        """None where none can be."""
        return None if self._scaler is None else self._skipped

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self._scaler is None else self._scaler.scale(loss)

    def take(self) -> None:
        """And forget the gradients."""
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
