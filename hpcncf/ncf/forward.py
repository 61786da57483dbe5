"""The model's forward and backward pass as the settings have them computed: compiled, in halves.

What is compiled is compiled before the first step, so that its time is the start-up's, and so that
the code does not depend on which batch came first: a run that resumes has the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hpcncf.errors import HpcncfError
from hpcncf.ncf import precision
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.products import HALVES
from hpcncf.spec import Training

WARM_UPS = 3  # TorchScript watches two calls, and optimises at the third

INDUCTOR: dict[str, Any] = {
    # Each rank compiles with its own core; a pool of 32 processes would stay for the whole run.
    "compile_threads": 1,
    # The masks of torch's own dropout, not the compiler's.
    "fallback_random": True,
}


class Forward(nn.Module):
    """Logits as the model's own `forward`; its parameters are the model's."""

    def __init__(self, model: NeuMF, training: Training, world_size: int, device: str) -> None:
        super().__init__()
        self.model = model
        self._device, self._half = device, HALVES.get(training.precision)
        self._least = least_instances(training, world_size)
        # In a tuple: as a module of this one it would own the model's parameters once more.
        self._compiled: tuple[Any, ...] = ()
        if training.compile != "none":
            self._compiled = (_compiled(model, training),)
            self._warm_up(training)

    def forward(self, users: Tensor, items: Tensor, context: Tensor) -> Tensor:
        run = self.model
        # An epoch's last batch is smaller: inductor would compile for it anew, for seconds.
        if self._compiled and len(users) >= self._least:
            run = self._compiled[0]
        if self._half is None:
            logits: Tensor = run(users, items, context)
            return logits
        with torch.autocast(self._device, self._half):
            logits = run(users, items, context)
        return logits.float()

    def _warm_up(self, training: Training) -> None:
        """Raises HpcncfError where the compiler is missing or fails."""
        # Two tensors: inductor would compile anew for items that are not the users.
        users, items = (
            torch.zeros(self._least, dtype=torch.int64, device=self._device) for _ in range(2)
        )
        context = torch.zeros(self._least, self.model.columns, device=self._device)
        try:
            # As it trains: torch.compile would compile anew where TensorFloat-32 is allowed later.
            allowed = precision.allowed(training, torch.device(self._device))
            # Of the device it trains on: to ask all would begin a context on each GPU of the node.
            mine = [torch.cuda.current_device()] if self._device == "cuda" else []
            with torch.random.fork_rng(mine), allowed:
                for _ in range(WARM_UPS):
                    self(users, items, context).sum().backward()
        except RuntimeError as error:
            raise HpcncfError(_failed(training, error)) from error
        self.model.zero_grad()


def least_instances(training: Training, world_size: int) -> int:
    """What the smallest part of a whole step has, on the rank that has the fewest positives."""
    positives = training.batch_over_ranks(world_size) // world_size
    return max(1, positives * (1 + training.negatives) // training.accumulate)


class CompiledStep:
    """A step by torch.compile, for tensors of one size each."""

    def __init__(self, step: Callable[..., None], training: Training) -> None:
        self._step = torch.compile(step, dynamic=False, options=INDUCTOR)
        self._training, self._compiled = training, False

    def __call__(self, *tensors: Tensor) -> None:
        """Raises HpcncfError at the first call, where the compiler is missing or fails."""
        try:
            self._step(*tensors)
        except RuntimeError as error:
            if self._compiled:  # this step's own
                raise
            raise HpcncfError(_failed(self._training, error)) from error
        self._compiled = True


def _compiled(model: NeuMF, training: Training) -> Any:
    if training.compile == "inductor":
        return torch.compile(model, dynamic=True, options=INDUCTOR)
    with warnings.catch_warnings():
        # torch calls TorchScript deprecated; who asks for it by name wants to see what it does.
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(model)


def _failed(training: Training, error: RuntimeError) -> str:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    needs = {
        "inductor": "; torch.compile needs a C++ compiler where the run is (g++, or the one that "
        "CXX names), and on a GPU Triton, a C compiler (CC) and Python's headers: load the site's "
        "modules of them in its setup lines, or use compile: none",
        "torchscript": "; use compile: none",
    }
    return f"training.compile {training.compile}: {reason}{needs[training.compile]}"
