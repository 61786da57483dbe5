"""The layers' parameters as one vector: torch's optimisers cost more than their arithmetic here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpcncf.ncf import rows
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.pace import Pace
from hpcncf.spec import Training


class Layers:
    """Adam or gradient descent of all but the tables. A step has a gradient for each of them."""

    def __init__(self, model: NeuMF, training: Training, pace: Pace) -> None:
        parameters = [each for part in model.layers() for each in part.parameters()]
        values = torch.cat([each.detach().reshape(-1) for each in parameters])
        # Values, and both moments behind them [3, n].
        self.parts = torch.stack([values, torch.zeros_like(values), torch.zeros_like(values)])
        self.gradient = torch.zeros_like(values)
        self._pace, self._descends = pace, training.optimizer == "sgd"
        sizes = [each.numel() for each in parameters]
        views = (torch.split(whole, sizes) for whole in (self.parts[0], self.gradient))
        for each, mine, gradient in zip(parameters, *views, strict=True):
            # backward() adds to a gradient that is there already, in place.
            each.data, each.grad = mine.view_as(each), gradient.view_as(each)

    def update(self) -> None:
        """Take the step with the gradient that backward left, and make room for the next."""
        if self._descends:
            self.parts[0].sub_(self.gradient, alpha=self._pace.lr)
        else:
            rows.move(self.parts, self.gradient, *self._pace.rates())
        self.gradient.zero_()

    def state(self) -> dict[str, Tensor | int]:
        return {"step": self._pace.step, "moments": self.parts[1:]}

    def load(self, state: dict[str, Any]) -> None:
        self._pace.follow(state["step"])
        self.parts[1:] = state["moments"]
