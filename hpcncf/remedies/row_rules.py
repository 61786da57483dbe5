"""Rules by which each optimizer updates single rows of a table, and catches them up later."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcncf.remedies.row_catch_up import (
    CENTRAL_STEPS,
    EPS,
    LOG_FIRST,
    LOG_KEPT,
    LOG_SECOND,
    MIN_SHRINKAGE,
    SIZE,
    IdleSteps,
    Missed,
)

Group = dict[str, Any]


class RowRule:
    """Rule by which an optimizer updates one table's rows; `group` is its param_group."""

    moves = series = False
    """Of `IdleSteps`."""

    def __init__(self, dtype: torch.dtype, device: torch.device, group: Group) -> None:
        self.traits = self.describe(group)
        self.moments, self.waits = self.traits
        moves = self.moves or "momentum_buffer" in self.moments
        self.steps = IdleSteps(dtype, device, self.series, moves)

    @classmethod
    def describe(cls, group: Group) -> tuple[tuple[str, ...], bool]:
        """Return the names of the optimizer's state of the parameter's shape, in torch's order.

        Also return whether a row without a gradient moves, or its moments do.
        """
        raise NotImplementedError

    @classmethod
    def refusal(cls, group: Group) -> str | None:
        """Return why rows cannot be updated exactly with this param_group; None if they can."""
        raise NotImplementedError

    def begin(self, group: Group, step: int) -> None:
        """Read the learning rate and other rates for the coming step, counted from 1."""
        raise NotImplementedError

    def advance(self) -> None:
        """Add the present step to those that a row can miss."""
        raise NotImplementedError

    def take(self, values: Tensor, moments: Sequence[Tensor], gradient: Tensor) -> None:
        """Apply the present step to rows in place; all arguments have shape [n, width]."""
        raise NotImplementedError

    def catch_up(self, values: Tensor, moments: Sequence[Tensor], last: Tensor) -> None:
        """Move rows, in place, from their last steps `last` [n] to the present step."""
        missed = Missed(self.steps, last)
        values.mul_(missed.kept)
        if self.series:
            values.addcmul_(moments[0], missed.slope(moments[1].sqrt(), moments[0]), value=-1)
        elif "momentum_buffer" in self.moments:
            momentum = moments[self.moments.index("momentum_buffer")]
            values.addcmul_(momentum, missed.shift(), value=-1)
        for name, moment in zip(self.moments, moments, strict=True):
            fades = name in ("exp_avg", "momentum_buffer")
            moment.mul_(missed.first if fades else missed.second)

    def replay(self, values: Tensor, moments: Sequence[Tensor], last: Tensor) -> None:
        """Move rows as `catch_up` does, but step by step in NumPy.

        It is much slower, but needs neither the series nor compiled loops: it is used when
        `catch_up` fails.
        """
        steps, since = self.steps, last.cpu().numpy()
        records, now = steps.records(), steps.now
        start, end = records[since], records[now]
        old = {
            name: moment.cpu().double().numpy()
            for name, moment in zip(self.moments, moments, strict=True)
        }
        kept = np.exp(end[LOG_KEPT] - start[:, LOG_KEPT])[:, None]
        moved = values.cpu().double().numpy() * kept
        mover = old.get("exp_avg", old.get("momentum_buffer"))
        if mover is not None:
            for passed in range(1, min(steps.window, now - int(since.min())) + 1):
                there = records[np.minimum(since + passed, now)]
                first = passed * steps.log_first + there[:, LOG_FIRST] - start[:, LOG_FIRST]
                size = there[:, SIZE] * np.exp(first + end[LOG_KEPT] - there[:, LOG_KEPT])
                size = np.where(since + passed <= now, size, 0.0)[:, None]
                if self.series:
                    second = passed * steps.log_second + there[:, LOG_SECOND] - start[:, LOG_SECOND]
                    root = np.sqrt(old["exp_avg_sq"] * np.exp(second)[:, None])
                    size = size / (root + there[:, EPS, None])
                moved -= size * mover
        values.copy_(torch.from_numpy(moved))
        for name, moment in zip(self.moments, moments, strict=True):
            fades = name in ("exp_avg", "momentum_buffer")
            column = LOG_FIRST if fades else LOG_SECOND
            rate = steps.log_first if fades else steps.log_second
            factor = np.exp((now - since) * rate + end[column] - start[:, column])
            factor[factor < MIN_SHRINKAGE[moment.dtype]] = 0.0
            moment.copy_(torch.from_numpy(old[name] * factor[:, None]))


class AdamRule(RowRule):
    moves = series = True
    decoupled = False

    @classmethod
    def describe(cls, group: Group) -> tuple[tuple[str, ...], bool]:  # noqa: ARG003
        return ("exp_avg", "exp_avg_sq"), True

    @classmethod
    def refusal(cls, group: Group) -> str | None:
        decay = float(group["weight_decay"])
        if group["amsgrad"]:
            return "amsgrad keeps a maximum over steps, which no closed form has"
        if decay and not group.get("decoupled_weight_decay", cls.decoupled):
            return (
                "weight_decay of Adam is part of the gradient, so a waiting row's moments never "
                "stop changing; AdamW's is not"
            )
        if float(group["lr"]) * decay >= 1:
            return "lr * weight_decay is 1 or more"
        if not float(group["eps"]) > 0:
            return "with eps=0 a row without a gradient becomes 0 / 0"
        return None

    def begin(self, group: Group, step: int) -> None:
        self._lr, self._eps, self._step = float(group["lr"]), float(group["eps"]), step
        self._beta1, self._beta2 = (float(beta) for beta in group["betas"])
        self._kept = 1 - self._lr * float(group["weight_decay"])
        self._size = self._lr / (1 - self._beta1**step)
        self._root = math.sqrt(1 - self._beta2**step)

    def rates(self) -> tuple[float, ...]:
        """Rates of the current step: beta1, beta2, 1 - lr * weight_decay, size, root and eps."""
        return self._beta1, self._beta2, self._kept, self._size, self._root, self._eps

    def advance(self) -> None:
        later = self._step + CENTRAL_STEPS
        self.steps.advance(
            self._size * self._root,
            self._beta1,
            self._beta2,
            self._kept,
            self._eps * self._root,
            self._eps * math.sqrt((1 - self._beta2**later) / self._beta2**CENTRAL_STEPS),
        )

    def take(self, values: Tensor, moments: Sequence[Tensor], gradient: Tensor) -> None:
        first, second = moments
        if self._kept != 1:
            values.mul_(self._kept)
        first.lerp_(gradient, 1 - self._beta1)
        second.mul_(self._beta2).addcmul_(gradient, gradient, value=1 - self._beta2)
        root = second.sqrt().div_(self._root).add_(self._eps)
        values.addcdiv_(first, root, value=-self._size)


class AdamWRule(AdamRule):
    decoupled = True


class SgdRule(RowRule):
    @classmethod
    def describe(cls, group: Group) -> tuple[tuple[str, ...], bool]:
        moments = ("momentum_buffer",) if group["momentum"] else ()
        return moments, bool(group["momentum"] or group["weight_decay"])

    @classmethod
    def refusal(cls, group: Group) -> str | None:
        if group["momentum"] and group["weight_decay"]:
            return (
                "weight_decay of SGD is part of the gradient, so with momentum a waiting row's "
                "values and momentum change each other"
            )
        if float(group["lr"]) * group["weight_decay"] >= 1:
            return "lr * weight_decay is 1 or more"
        return None

    def begin(self, group: Group, step: int) -> None:
        self._lr, self._is_first = float(group["lr"]), step == 1
        self._momentum, self._nesterov = group["momentum"], group["nesterov"]
        self._decay, self._dampening = group["weight_decay"], group["dampening"]

    def advance(self) -> None:
        size = self._lr * self._momentum if self._nesterov else self._lr
        self.steps.advance(size, self._momentum, kept=1 - self._lr * self._decay)

    def take(self, values: Tensor, moments: Sequence[Tensor], gradient: Tensor) -> None:
        if self._decay:
            gradient = gradient.add(values, alpha=self._decay)
        for buffer in moments:
            if self._is_first:
                buffer.copy_(gradient)
            else:
                buffer.mul_(self._momentum).add_(gradient, alpha=1 - self._dampening)
            gradient = gradient.add(buffer, alpha=self._momentum) if self._nesterov else buffer
        values.add_(gradient, alpha=-self._lr)


class AdagradRule(RowRule):
    @classmethod
    def describe(cls, group: Group) -> tuple[tuple[str, ...], bool]:  # noqa: ARG003
        return ("sum",), False

    @classmethod
    def refusal(cls, group: Group) -> str | None:
        if group["weight_decay"]:
            return "weight_decay of Adagrad is part of the gradient, and so of every row's sum"
        return None

    def begin(self, group: Group, step: int) -> None:
        self._lr = float(group["lr"]) / (1 + (step - 1) * group["lr_decay"])
        self._eps = group["eps"]

    def advance(self) -> None:
        pass

    def take(self, values: Tensor, moments: Sequence[Tensor], gradient: Tensor) -> None:
        total = moments[0].addcmul_(gradient, gradient)
        values.addcdiv_(gradient, total.sqrt().add_(self._eps), value=-self._lr)


class RmspropRule(RowRule):
    @classmethod
    def describe(cls, group: Group) -> tuple[tuple[str, ...], bool]:
        moments = ("momentum_buffer",) if group["momentum"] > 0 else ()
        return ("square_avg", *moments, *(["grad_avg"] if group["centered"] else [])), True

    @classmethod
    def refusal(cls, group: Group) -> str | None:
        if group["weight_decay"]:
            return "weight_decay of RMSprop is part of the gradient, and so of every row's average"
        return None

    def begin(self, group: Group, step: int) -> None:  # noqa: ARG002
        self._lr, self._eps = float(group["lr"]), group["eps"]
        self._alpha, self._momentum = group["alpha"], group["momentum"]

    def advance(self) -> None:
        self.steps.advance(self._lr, self._momentum, self._alpha)

    def take(self, values: Tensor, moments: Sequence[Tensor], gradient: Tensor) -> None:
        part = dict(zip(self.moments, moments, strict=True))
        square = part["square_avg"].mul_(self._alpha)
        square.addcmul_(gradient, gradient, value=1 - self._alpha)
        if "grad_avg" in part:
            mean = part["grad_avg"].lerp_(gradient, 1 - self._alpha)
            square = square.addcmul(mean, mean, value=-1)
        root = square.sqrt().add_(self._eps)
        if "momentum_buffer" in part:
            part["momentum_buffer"].mul_(self._momentum).addcdiv_(gradient, root)
            values.add_(part["momentum_buffer"], alpha=-self._lr)
        else:
            values.addcdiv_(gradient, root, value=-self._lr)


RULES: tuple[tuple[type[torch.optim.Optimizer], type[RowRule]], ...] = (
    (torch.optim.AdamW, AdamWRule),
    (torch.optim.Adam, AdamRule),
    (torch.optim.SGD, SgdRule),
    (torch.optim.Adagrad, AdagradRule),
    (torch.optim.RMSprop, RmspropRule),
)


def find_rule(optimizer: torch.optim.Optimizer) -> type[RowRule] | None:
    """Return the rule that updates an optimizer's rows; None if no rule is known for it.

    There is none for a class that overrides torch's `step`.
    """
    step = inspect.unwrap(type(optimizer).step)
    for stock, rule in RULES:
        if isinstance(optimizer, stock):
            return rule if step is inspect.unwrap(stock.step) else None
    return None
