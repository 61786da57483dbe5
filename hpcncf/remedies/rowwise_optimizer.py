"""Exact optimizers at the cost of the rows that a batch reads, for any PyTorch program.

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rowwise(model, optimizer)

The results are those of the optimizer as it was, to rounding: rows without a gradient are moved
when they are next read. `docs/remedies-for-your-program.md` lists what is covered.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hpcncf.errors import UsageError
from hpcncf.remedies.row_catch_up import TERMS
from hpcncf.remedies.row_rules import RULES, Group, RowRule, find_rule
from hpcncf.remedies.row_table import RowTable, RowwiseParameter, describe_error

Optimizer = torch.optim.Optimizer
Embedding = nn.Embedding | nn.EmbeddingBag

SMALL = {"for_each": 2**19, "fused": 2**21}
"""Values of a table below which moving all of them takes no longer than finding the rows to move:
torch's optimizers, and its fused ones."""

SHARE = {"for_each": 1 / 8, "fused": 1 / 32}
"""Of a table's rows, those that a step may read at most for rows to pay."""
STEPS_JUDGED = 20


@dataclass
class Candidate:
    """An embedding's parameter that might be updated by rows."""

    name: str
    parameter: nn.Parameter
    embeddings: list[Embedding] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Names under which modules of other kinds hold it."""


class Rowwise:
    """Tables of one optimizer that are updated by rows; `print` shows them."""

    def __init__(self, optimizer: Optimizer, most: float = 1.0) -> None:
        """Begin without tables. `most`: largest share of a table's rows that steps may read.

        A table of which they read more is given back after `STEPS_JUDGED` steps.
        """
        self._most = most
        self.left: dict[str, str] = {}
        """Tables that torch's optimizer updates as before, and why."""
        self._optimizer = optimizer
        self._leaving: list[tuple[str, str]] = []
        self._tables: dict[str, RowTable] = {}
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_pre_hook(lambda _: self.settle()),
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.settle()),
            optimizer.register_load_state_dict_post_hook(lambda _: self._adopt()),
        ]
        # The program's hooks see gradients.
        hooks: Any = optimizer._optimizer_step_post_hooks
        hooks.move_to_end(self._handles[1].id, last=False)

    @property
    def tables(self) -> list[str]:
        """Names of the parameters that are updated by rows."""
        return [name for name, table in self._tables.items() if table.failure is None]

    def settle(self) -> None:
        """Bring every row of all tables up to date.

        Only code outside of Python needs this: a NumPy array or a pointer that shares a table's
        memory.
        """
        for table in list(self._tables.values()):
            table.settle()

    def remove(self) -> None:
        """Give all tables back to torch's optimizer, which continues from the same state."""
        for name in list(self._tables):
            self._release(name, "removed")
        for handle in self._handles:
            handle.remove()

    def __str__(self) -> str:
        lines = [f"{name}: updated by rows" for name in self.tables]
        return "\n".join(lines + [f"{name}: as before; {why}" for name, why in self.left.items()])

    def _add(self, candidate: Candidate, group: Group, rule: type[RowRule]) -> None:
        name = candidate.name
        table = RowTable(name, candidate.parameter, self._optimizer, group, rule)
        table.report_failure = lambda why: self._report_failure(name, why)
        table.give_back = lambda why: self._release(name, why)
        self._tables[name] = table

    def _release(self, name: str, why: str) -> None:
        self._tables.pop(name).release()
        self.left.setdefault(name, why)

    def _report_failure(self, name: str, why: str) -> None:
        self.left[name] = why
        # Where warnings are errors, this one must not become the program's.
        with suppress(Warning):
            warnings.warn(f"rowwise: {name} goes back to torch's optimizer; {why}", stacklevel=2)

    def _adopt(self) -> None:
        owners = owners_of(self._optimizer)
        for table in self._tables.values():
            table.group = owners.get(id(table.parameter), table.group)
            table.adopt()

    def _before_step(self, _: Optimizer, args: Any, kwargs: Any) -> Any:
        """Wrap the closure of torch's step so that it updates the tables by rows first.

        The closure runs after all step hooks.
        """
        closure = args[1] if len(args) > 1 else kwargs.get("closure")

        def step_rows() -> Any:
            loss = None if closure is None else closure()
            self._step_rows()
            return loss

        return (args[0], step_rows), {}

    @torch.no_grad()
    def _step_rows(self) -> None:
        """Update the tables by rows, and hide their gradients from torch's own step."""
        optimizer, owners = self._optimizer, owners_of(self._optimizer)
        # A fused optimizer divides by GradScaler's factor itself.
        scale, found = (getattr(optimizer, each, None) for each in ("grad_scale", "found_inf"))
        skipped = found is not None and bool(found)
        leaving: list[tuple[str, str]] = []
        for name, table in list(self._tables.items()):
            group = owners.get(id(table.parameter))
            if group is None or table.slot() is None:
                continue
            table.group = group
            why = table.obstacle()
            if why is not None:
                self._release(name, why)
                continue
            try:
                if skipped:
                    table.make_state()
                else:
                    table.step(scale)
            except Exception as error:
                if table.is_changed:
                    raise  # as any optimizer that fails in the middle of its step
                self._report_failure(name, f"a step by rows failed: {describe_error(error)}")
                self._release(name, self.left[name])
                continue
            if table.failure is not None and not torch.distributed.is_initialized():
                leaving.append((name, table.failure))
            table.hidden = True
            if table.steps_taken == STEPS_JUDGED:
                share = table.rows_read / STEPS_JUDGED / len(table.values)
                if table.times_settled > STEPS_JUDGED // 2:
                    share = 1.0
                # DistributedDataParallel could not go back to gradients of all rows.
                if share > self._most and not torch.distributed.is_initialized():
                    leaving.append((name, f"a step reads {share:.0%} of its rows"))
        self._leaving = leaving

    def _after_step(self, *_: Any) -> None:
        for table in self._tables.values():
            table.hidden = False
        for name, why in self._leaving:
            self._release(name, why)
        if self._leaving and not self._tables:
            for handle in self._handles[:1] + self._handles[2:]:  # this one is being called
                handle.remove()
        self._leaving = []


def owners_of(optimizer: Optimizer) -> dict[int, Group]:
    """Return the param_group of each parameter: id of the parameter -> group."""
    return {id(each): group for group in optimizer.param_groups for each in group["params"]}


def embeddings_of(model: nn.Module) -> list[Candidate]:
    """Return the model's embedding weights, each under the first of its names."""
    found: dict[int, Candidate] = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if isinstance(module, Embedding) and weight is not None:
            candidate = found.setdefault(
                id(weight), Candidate(f"{name}.weight".lstrip("."), weight)
            )
            candidate.embeddings.append(module)
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if id(parameter) in found and not isinstance(module, Embedding):
                found[id(parameter)].others.append(f"{name}.{key}".lstrip("."))
    return list(found.values())


def refusal(
    candidate: Candidate, optimizer: Optimizer, group: Group, rule: type[RowRule] | None
) -> str | None:
    """Return why updating a table by rows would not be exact or not be cheaper, or None."""
    parameter = candidate.parameter
    if rule is None:
        known = ", ".join(stock.__name__ for stock, _ in RULES)
        return f"{type(optimizer).__name__} is not one of torch.optim's {known}"
    if type(parameter) not in (nn.Parameter, RowwiseParameter):
        return f"it is a {type(parameter).__name__}, not an nn.Parameter"
    if parameter.dtype not in TERMS:
        return f"it is {parameter.dtype}; rows are exact in float32 and float64"
    if candidate.others:
        return f"it is also {' and '.join(candidate.others)}, which reads all of its rows"
    if parameter._backward_hooks:
        return "a hook on its gradient expects that of all rows"
    for module in candidate.embeddings:
        if module.max_norm is not None:
            return "max_norm changes rows when they are read"
        if module.scale_grad_by_freq:
            return "torch has no gradient by rows with scale_grad_by_freq"
        if getattr(module, "mode", None) == "max":
            return "torch has no gradient by rows for mode 'max'"
    for option in ("differentiable", "capturable"):
        if group.get(option):
            return f"the optimizer is {option}"
    return rule.refusal(group)


def rowwise(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    strict: bool = True,
    small: int | None = None,
) -> Rowwise:
    """Let `optimizer` update only the embedding rows of `model` that a batch reads.

    The results are those of updating all rows. Call it before the first step, or at any later
    time.

    Raises UsageError, with names and reasons, if that would not be exact for one of them. With
    `strict=False` torch's optimizer goes on to update those, and `left` names them. Tables for
    which rows save no time are left to it, too: small ones at once, others if the first 20 steps
    read a large share of their rows. `small` sets the number of values from which on a table is
    taken whatever its batches read.
    """
    rule = find_rule(optimizer)
    kind = "fused" if any(each.get("fused") for each in optimizer.param_groups) else "for_each"
    found = Rowwise(optimizer, SHARE[kind] if small is None else 1.0)
    if small is None:
        small = SMALL[kind]
    refused, taken = {}, []
    owners = owners_of(optimizer)
    candidates = [each for each in embeddings_of(model) if id(each.parameter) in owners]
    if not candidates:
        raise UsageError(
            "rowwise: the optimizer owns no nn.Embedding or nn.EmbeddingBag of the model"
        )
    for candidate in candidates:
        group, size = owners[id(candidate.parameter)], candidate.parameter.numel()
        if size < small:
            found.left[candidate.name] = (
                f"with {size:,} values, all are moved as fast as a few rows"
            )
        elif (why := refusal(candidate, optimizer, group, rule)) is not None:
            refused[candidate.name] = why
        else:
            taken.append((candidate, group))
    if refused and strict:
        found.remove()
        reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise UsageError(f"rowwise cannot be exact for {reasons}")
    found.left |= refused
    for candidate, group in taken:
        assert rule is not None
        if isinstance(candidate.parameter, RowwiseParameter):
            candidate.parameter._table.give_back("a later call of rowwise took it")
        found._add(candidate, group, rule)
    if not taken:
        found.remove()  # its hooks would cost a small model's step some per cent
    return found


class RowwiseAdam(torch.optim.Adam):
    """torch.optim.Adam for all parameters of `model`, with embeddings updated by rows."""

    def __init__(self, model: nn.Module, lr: float | Tensor = 1e-3, **settings: Any) -> None:
        super().__init__(model.parameters(), lr=lr, **settings)
        self.rowwise = rowwise(model, self)
