"""Products of the layers' matrices in the precision that the settings say, their sums in float32.

float16 and bfloat16 are what the factors are rounded to. Where they round, a row-wise step's
errors, at most 1 each, are divided by the batch's instances behind the products, not before: so
they are not too small for float16, no loss is scaled, and no step skipped.
"""

from __future__ import annotations

import torch
from torch import Tensor

HALVES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Products:
    """Of matrices that lie in float32, or in float64 where nothing is rounded."""

    def __init__(self, precision: str) -> None:
        self._half = HALVES.get(precision)
        self.rounds = self._half is not None

    def of(self, left: Tensor, right: Tensor) -> Tensor:
        if self._half is None:
            return torch.mm(left, right)
        left, right = left.to(self._half), right.to(self._half)
        if left.device.type == "cpu":  # which has no product of halves with a float32 result
            return torch.mm(left.float(), right.float())
        return torch.mm(left, right, out_dtype=torch.float32)

    def shifted(self, bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
        if self._half is None:
            return torch.addmm(bias, left, right)
        return self.of(left, right).add_(bias)

    def add(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """To `total`, in place."""
        if self._half is None:
            total.addmm_(left, right)
        else:
            total.add_(self.of(left, right))
