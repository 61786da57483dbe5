"""torch's optimisers: which of them for which parameters, and in which of torch's versions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, SparseAdam

from hpcncf.ncf.model import NeuMF
from hpcncf.spec import Training


class LazyAdam:
    """SparseAdam for the tables, Adam for the layers: the usual pair, stepped as one."""

    def __init__(self, model: NeuMF, training: Training) -> None:
        layers = chain(*(each.parameters() for each in model.layers()))
        self._parts: dict[str, Optimizer] = {
            "tables": SparseAdam([each.weight for each in model.tables()], lr=training.lr),
            "layers": of(layers, training),
        }

    def step(self) -> None:
        for part in self._parts.values():
            part.step()

    def zero_grad(self) -> None:
        for part in self._parts.values():
            part.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def moments(self) -> list[Tensor]:
        return [each for part in self._parts.values() for each in moments(part)]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(state[name])


def chosen(model: NeuMF, training: Training) -> Optimizer | LazyAdam:
    """Of all the model's parameters; makes its tables' gradients sparse where the settings say."""
    for table in model.tables():
        table.sparse = training.sparse
    if training.optimizer == "lazy_adam":
        return LazyAdam(model, training)
    return of(model.parameters(), training)


def of(parameters: Iterable[nn.Parameter], training: Training) -> Optimizer:
    """Of parameters that have a gradient in every step."""
    if training.optimizer == "sgd":
        return SGD(parameters, lr=training.lr, weight_decay=training.weight_decay)
    # torch's own choice, where neither is asked for: one tensor after another on a CPU, foreach
    # on a GPU.
    return Adam(
        parameters,
        lr=training.lr,
        weight_decay=training.weight_decay,
        foreach=True if training.adam == "foreach" else None,
        fused=True if training.adam == "fused" else None,
    )


def moments(optimizer: Optimizer | LazyAdam) -> list[Tensor]:
    """What it keeps for each value of each parameter, in the parameters' order."""
    if isinstance(optimizer, LazyAdam):
        return optimizer.moments()
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    kept = [(each, optimizer.state[each]) for each in parameters if each in optimizer.state]
    return [
        value
        for parameter, state in kept
        for value in state.values()
        if isinstance(value, Tensor) and value.shape == parameter.shape
    ]
