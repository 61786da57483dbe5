"""One embedding table of which an optimizer moves only the rows that a batch reads.

The parameter stays the object that model and optimizer hold; only its class changes. torch then
hands every Python call with it to `dispatch`, which lets lookups read their rows and brings the
whole table up to date before any other call sees it. The same holds for aliases (`weight.data`, a
`state_dict`) and for the optimizer's moments. Its gradient is kept as the rows of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map

from hpcncf.remedies.row_catch_up import TERMS
from hpcncf.remedies.row_exchange import exchange_rows
from hpcncf.remedies.row_kernels import RowKernels, prefer_huge_pages
from hpcncf.remedies.row_rules import AdamRule, Group, RowRule

Call = tuple[tuple[Any, ...], dict[str, Any]]
plainly = torch._C.DisableTorchFunctionSubclass
"""Calls inside see the tensors as torch's own."""

# Rows brought up to date at once: a CPU's cache holds these; a GPU would spend its time on starting
# kernels.
ROWS_AT_ONCE = {"cpu": 2**12}
ON_GPU = 2**17
ROWS_REPLAYED_AT_ONCE = 2**8
"""Few: memory may be what failed."""


class RowTable:
    """Values, moments and gradient of one parameter that is updated by rows."""

    def __init__(
        self,
        name: str,
        parameter: nn.Parameter,
        optimizer: torch.optim.Optimizer,
        group: Group,
        rule: type[RowRule],
    ) -> None:
        self.name, self.parameter, self.optimizer, self.group = name, parameter, optimizer, group
        self._make_rule = rule
        self.hidden = False
        """Whether torch's optimizer, in its step, is to see no gradient."""
        self.give_back: Callable[[str], None]
        """Lets torch's optimizer update the table from now on; the argument is the reason."""
        self.steps_taken = self.rows_read = self.times_settled = 0
        self.failure: str | None = None
        """What went wrong here. The rows are up to date; the next step gives the table back."""
        self.report_failure: Callable[[str], None]
        self.is_changed = False
        """Whether the step that was last begun has changed anything."""
        self._unwritten: tuple[Tensor, Tensor, list[Tensor]] | None = None
        """Rows whose present values are known but perhaps written in part: an interrupt may come
        between any two writes, and the next call goes on from here."""
        self._gradient: RowGradient | None = None
        self._wrappers: WeakSet[DistributedDataParallel] = WeakSet()
        parameter.__class__ = RowwiseParameter
        parameter._table = self  # type: ignore[attr-defined]
        self.adopt()

    def adopt(self) -> None:
        """Take over the parameter and the optimizer's state as they are, with all rows current."""
        with plainly():
            self.values = self.parameter.data
        kept = self.optimizer.state.get(self.parameter) or {}
        self.rule = self._make_rule(self.values.dtype, self.values.device, self.group)
        found = [plain(kept.get(name)) for name in self.rule.moments]
        self._moments: list[Tensor] = []
        self._shown: list[Tensor] = []
        """The moments as the optimizer's state has them."""
        self._step = 0
        if kept and all(each is not None for each in found):
            self._moments = found
            self._step = int(kept["step"]) if "step" in kept else 1
            self._show_moments()
        self._last = torch.zeros(len(self.values), dtype=torch.int64, device=self.values.device)
        self._is_current = True
        self._find_kernels()

    def _find_kernels(self) -> None:
        rule, found = self.rule, None
        with plainly():
            if (
                not self.failure
                and isinstance(rule, AdamRule)
                and RowKernels.fit(self.values, self._moments)
            ):
                found = RowKernels(self.values, self._moments, self._last, rule)
        self._kernels = found

    def _show_moments(self) -> None:
        self._shown = [view_of(each, self) for each in self._moments]
        named = zip(self.rule.moments, self._shown, strict=True)
        self.optimizer.state[self.parameter].update(named)

    def _is_shown(self) -> bool:
        """Return whether the optimizer's state is the one stored here last.

        A program may clear or replace it.
        """
        state = self.optimizer.state[self.parameter]
        step = state.get("step")
        if step is not None and step.is_cpu and int(step) != self._step:
            return False
        named = zip(self.rule.moments, self._shown, strict=False)
        return all(state.get(name) is each for name, each in named)

    def pointers(self) -> set[int]:
        return {each.untyped_storage().data_ptr() for each in (self.values, *self._moments)}

    # -- reading

    @torch.no_grad()
    def read(self, ids: Tensor) -> None:
        """Bring the rows `ids`, of any shape, up to date before they are read."""
        self.hidden = False
        wrapper = DistributedDataParallel._active_ddp_module
        if wrapper is not None:
            if wrapper not in self._wrappers:
                self._wrappers.add(wrapper)
                exchange_rows(wrapper)
            slot = self.slot()
            if slot is not None and not slot.is_sparse:  # it expects none of all rows
                self.fill_slot(slot.to_sparse(1))
        if self._is_current or not ids.numel():
            return
        with plainly():
            ids = ids.detach().reshape(-1)
            try:
                self._read(ids)
            except Exception as error:
                # The lookup that follows raises torch's own error for ids that are not in the
                # table, in the program's own terms.
                if int(ids.min()) >= 0 and int(ids.max()) < len(self.values):
                    self._fail(error)

    def _read(self, ids: Tensor) -> None:
        self._finish_write()
        if self._kernels is not None:
            self._kernels.catch_up(ids.to(torch.int64).contiguous())
            return
        behind = ids[self._last.index_select(0, ids) < self.rule.steps.now]
        if len(behind):
            self._catch_up(torch.unique(behind))

    @torch.no_grad()
    def settle(self) -> None:
        """Bring every row of the table up to date."""
        if self._is_current:
            return
        self.times_settled += 1
        with plainly():
            try:
                self._settle(ROWS_AT_ONCE.get(self.values.device.type, ON_GPU))
            except Exception as error:
                self._fail(error)

    def _settle(self, rows_at_once: int) -> None:
        self._finish_write()
        behind = (self._last < self.rule.steps.now).nonzero().squeeze(1)
        # All rows may be current although a step has passed: a batch or an evaluation read each.
        for start in range(0, len(behind), rows_at_once):
            self._catch_up(behind[start : start + rows_at_once])
        self.rule.steps.restart()
        self._last.zero_()
        self._is_current = True

    def _fail(self, error: Exception) -> None:
        """Bring all rows up to date step by step, after the usual way raised `error`.

        A remedy must not cost a model.

        The table goes back to torch with the next step. The present forward pass may already hold
        lookups whose gradients come as rows.
        """
        self._kernels = None
        self.rule.catch_up = self.rule.replay  # type: ignore[method-assign]
        self._settle(ROWS_REPLAYED_AT_ONCE)
        self.failure = f"its rows could not be brought up to date: {describe_error(error)}"
        self.report_failure(self.failure)

    def _catch_up(self, ids: Tensor) -> None:
        values, *moments = (each.index_select(0, ids) for each in (self.values, *self._moments))
        self.rule.catch_up(values, moments, self._last.index_select(0, ids))
        self._unwritten = (ids, values, moments)
        self._finish_write()

    def _finish_write(self) -> None:
        if self._unwritten is not None:
            ids, values, moments = self._unwritten
            self._write(ids, values, moments)
            self._last.index_fill_(0, ids, self.rule.steps.now)
            self._unwritten = None

    def _write(self, ids: Tensor, values: Tensor, moments: Iterable[Tensor]) -> None:
        for table, rows in zip((self.values, *self._moments), (values, *moments), strict=True):
            write_rows(table, ids, rows)

    # -- the gradient: a sparse tensor in the parameter's own slot, where autograd adds to it

    def slot(self) -> Tensor | None:
        with plainly():
            return self.parameter.grad

    def fill_slot(self, gradient: Tensor | None) -> None:
        if isinstance(gradient, RowGradient):
            gradient = gradient.as_sparse()
        with plainly():
            self.parameter.grad = plain(gradient)

    @torch.no_grad()
    def gradient(self) -> Tensor | None:
        """Return the parameter's gradient as the user's code sees it; None without one."""
        slot = self.slot()
        if slot is None or not slot.is_sparse:
            return slot
        if not slot.is_coalesced():
            slot = slot.coalesce()
            self.fill_slot(slot)
        if self._gradient is None or self._gradient._slot is not slot:
            self._gradient = RowGradient.of(slot, self)
        return self._gradient

    def densify_gradient(self) -> Tensor:
        """Convert the parameter's gradient to one of all rows, and return it."""
        slot = self.slot()
        assert slot is not None
        if slot.is_sparse:
            slot = slot.to_dense()
            self.fill_slot(slot)
        return slot

    # -- the step

    def obstacle(self) -> str | None:
        """Return why the coming step cannot be taken by rows; None if it can."""
        if self.rule.traits != self._make_rule.describe(self.group):
            return "the optimizer's settings changed which moments it has"
        return self._make_rule.refusal(self.group)

    @torch.no_grad()
    def step(self, scale: Tensor | None = None) -> None:
        """Take the optimizer's step for this table; the gradient is first divided by `scale`.

        After an exception with `is_changed` False, all is as if the step had not begun.
        """
        slot = self.slot()
        if slot is None:
            return
        self.is_changed = False
        try:
            with plainly():
                self._begin()
            self._step_rows(slot, scale)
        except Exception:
            if not self.is_changed:
                self._undo_begin()
            raise

    def _step_rows(self, slot: Tensor, scale: Tensor | None) -> None:
        ids: torch.Tensor | None
        if self._kernels is not None and slot.is_sparse and scale is None:
            ids, gradient = slot._indices()[0], slot._values()  # it adds rows of equal ids itself
        else:
            seen = self.gradient()
            # A copy: what NumPy has seen autograd cannot resize.
            ids = seen._ids.clone() if isinstance(seen, RowGradient) else None
            gradient = plain(seen)
        with plainly():
            if scale is not None:
                self.is_changed = True
                gradient.div_(scale)
            if self.group["maximize"]:
                gradient = gradient.neg()
            self.steps_taken += 1
            if ids is None:
                self.rows_read += len(self.values)
                self.settle()
                self.is_changed = True
                self.rule.take(self.values, self._moments, gradient)
            elif self._kernels is not None:
                gradient = gradient.to(self.values.dtype).contiguous()
                self._finish_write()
                self.is_changed = True
                self.rows_read += self._kernels.step(ids.contiguous(), gradient)
            else:
                self.rows_read += len(ids)
                self.read(ids)  # rows that another rank read
                tables = (self.values, *self._moments)
                values, *moments = (each.index_select(0, ids) for each in tables)
                self.rule.take(values, moments, gradient)
                self.is_changed = True
                self._write(ids, values, moments)
            if not self.rule.waits:
                return
            self.rule.advance()
            if ids is None:
                self._last.fill_(self.rule.steps.now)
                return
            if self._kernels is None:
                self._last.index_fill_(0, ids, self.rule.steps.now)
            self._is_current = False
            if self.rule.steps.is_full:
                self.settle()

    def _begin(self) -> None:
        self.make_state()
        state = self.optimizer.state[self.parameter]
        self._step += 1
        if "step" in state:
            state["step"] += 1
        self.rule.begin(self.group, self._step)

    def _undo_begin(self) -> None:
        state = self.optimizer.state[self.parameter]
        if self._step > 0:
            self._step -= 1
            if "step" in state:
                state["step"] -= 1
        if self._step == 0:  # torch's optimizer makes it with its own first step
            self.optimizer.state.pop(self.parameter)
            self._moments = []

    def make_state(self) -> None:
        """Create the optimizer's state for this table; torch has it even after a skipped step."""
        if not self._is_shown():
            self.settle()
            self.adopt()
        state = self.optimizer.state[self.parameter]
        if len(self._moments) < len(self.rule.moments):
            self._moments = [
                prefer_huge_pages(torch.empty_like(self.values)).zero_() for _ in self.rule.moments
            ]
            prefer_huge_pages(self.values)
            if not isinstance(self.optimizer, torch.optim.SGD):
                on_device = self.group.get("fused") or self.group.get("capturable")
                wide = torch.get_default_dtype() == torch.float64 and not self.group.get("fused")
                state["step"] = torch.zeros(
                    (),
                    dtype=torch.float64 if wide else torch.float32,
                    device=self.values.device if on_device else "cpu",
                )
            self._show_moments()
            self._find_kernels()

    def release(self) -> None:
        """Give the table back to torch's optimizer, in the state that torch would have left."""
        self.settle()
        if self.slot() is not None:
            self.densify_gradient()
        state = self.optimizer.state.get(self.parameter) or {}
        for name, moment in zip(self.rule.moments, self._moments, strict=False):
            state[name] = moment
        del self.parameter._table  # type: ignore[attr-defined]
        self.parameter.__class__ = nn.Parameter
        for wrapper in list(self._wrappers):
            exchange_rows(wrapper)


def describe_error(error: Exception) -> str:
    """Describe an exception by its type and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def write_rows(table: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Assign table[ids] = rows for distinct ids.

    On a CPU NumPy copies whole rows where torch copies single values.
    """
    if table.device.type == "cpu" and not torch.compiler.is_compiling():
        table.numpy()[ids.numpy()] = rows.numpy()
    else:
        table.index_copy_(0, ids, rows)


class _OfTable(Tensor):
    """Base of tensor subclasses whose torch calls are handled by `dispatch`."""

    _table: RowTable

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # What a call does depends on the rows that wait, so nothing that was compiled holds again.
        call = dispatch_outside if torch.compiler.is_compiling() else dispatch
        return call(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = copied(self)
        found: Tensor = memo[id(self)]
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copied(self).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


class RowwiseParameter(_OfTable, nn.Parameter):
    """Parameter whose rows may be outdated until they are read."""


class TableView(_OfTable):
    """Alias of a table's values or of one of its moments."""


class RowGradient(_OfTable):
    """Gradient [rows, width] that stores some rows only; the others are zero."""

    _ids: Tensor
    _slot: Tensor
    """Sparse, until a change needs all rows."""
    _stored: Tensor

    @staticmethod
    def of(slot: Tensor, table: RowTable) -> RowGradient:
        """Create a gradient by rows that shares the memory of a coalesced sparse gradient."""
        values = slot.detach()._values()
        found = values.as_subclass(RowGradient)
        found._table, found._slot, found._stored = table, slot, values
        found._ids = slot._indices()[0]
        return found

    def as_sparse(self) -> Tensor:
        return self._slot

    def all_rows(self) -> Tensor:
        return self._slot.detach().to_dense() if self._slot.is_sparse else self._slot

    def become(self, dense: Tensor) -> None:
        """Replace this gradient by `dense`, a gradient of all rows, from now on."""
        if self._table.slot() is self._slot:
            self._table.fill_slot(dense)
        self._slot = dense


def plain(value: Any) -> Any:
    """Convert a tensor of a table to a plain torch tensor that shares its memory."""
    if isinstance(value, RowGradient):
        return value._stored if value._slot.is_sparse else value._slot
    if isinstance(value, TableView):
        with plainly():
            return value.as_subclass(Tensor)
    return value


def view_of(tensor: Tensor, table: RowTable) -> Tensor:
    with plainly():
        view = tensor.as_subclass(TableView)
    view._table = table
    return view


def add_hook(tensor: Tensor, hook: Any) -> Any:
    """Register a gradient hook; the table is given back, since hooks expect all rows."""
    if not isinstance(tensor, RowwiseParameter):
        return NotImplemented
    tensor._table.give_back("a hook on its gradient expects that of all rows")
    return tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def copied(tensor: _OfTable) -> Tensor:
    """Return an up-to-date copy of a table's tensor, which torch may modify freely."""
    if isinstance(tensor, RowGradient):
        return tensor.all_rows().clone()
    tensor._table.settle()
    with plainly():
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(tensor.data.clone(), tensor.requires_grad)
        return tensor.detach().as_subclass(Tensor).clone()


# -- calls


def dispatch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a torch function with up-to-date tables, and gradients in a form that it accepts."""
    if torch._C._get_tracing_state() is not None and give_back_traced(tree_leaves((args, kwargs))):
        return func(*args, **kwargs)
    if (handler := HANDLERS.get(func)) is not None:
        found = handler(*args, **kwargs)
        if found is not NotImplemented:
            return found
    ours = [each for each in tree_leaves((args, kwargs)) if isinstance(each, _OfTable)]
    gradients = [each for each in ours if isinstance(each, RowGradient)]
    if gradients:
        if (found := call_on_rows(func, args, kwargs)) is not NotImplemented:
            return found
        return call_on_all_rows(func, args, kwargs, gradients)
    with plainly():
        if func in OF_THE_FORM:
            return func(*args, **kwargs)
        tables = {id(each._table): each._table for each in ours}
        for table in tables.values():
            table.settle()
        found = func(*args, **kwargs)
        if tables:
            found = with_views(found, list(tables.values()))
        return found


def give_back_traced(tensors: Iterable[Any]) -> bool:
    """Give back the tables among the inputs of a trace; return whether there were any.

    A compiled trace would read them without passing through here.
    """
    state, found = torch._C._get_tracing_state(), False
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        for each in tensors:
            if isinstance(each, RowwiseParameter):
                each._table.give_back("torch.jit.trace reads it unseen")
                found = True
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
    return found


dispatch_outside = torch._disable_dynamo(dispatch)  # type: ignore[attr-defined]
"""Uncompiled, between compiled parts of the program."""


def with_views(found: Any, tables: list[RowTable]) -> Any:
    """Wrap result tensors that share a table's memory as views of the table."""
    if isinstance(found, tuple | list):
        return type(found)(with_views(each, tables) for each in found)
    if type(found) is not Tensor or (pointer := pointer_of(found)) is None:
        return found
    for table in tables:
        if pointer in table.pointers():
            return view_of(found, table)
    return found


def call_on_all_rows(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    gradients: list[RowGradient],
) -> Any:
    """Call a torch function with the gradients expanded to all rows.

    They stay dense if `func` modifies them or returns views.
    """
    dense = {id(each): each.all_rows() for each in gradients}
    if is_in_place(func):
        for each in tree_leaves(next(iter((*args, *kwargs.values())))):
            if isinstance(each, RowGradient):
                each.become(dense[id(each)])
    args, kwargs = tree_map(lambda each: dense.get(id(each), each), (args, kwargs))
    found = func(*args, **kwargs)
    memory = {pointer_of(each) for each in tree_leaves(found)}
    for each in gradients:
        if pointer_of(dense[id(each)]) in memory:
            each.become(dense[id(each)])
    return found


def pointer_of(value: Any) -> int | None:
    """Return the address of a tensor's memory; None for sparse tensors, or those of vmap."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return None
    return value.untyped_storage().data_ptr()


def is_in_place(func: Callable[..., Any]) -> bool:
    name = func.__name__
    if name.startswith("__"):
        return name.startswith("__i") or name in ("__setitem__", "__set__")
    return name.endswith("_")


def call_on_rows(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a torch function to the stored rows only, if it leaves zero rows unchanged.

    Otherwise it returns NotImplemented.
    """
    if func in OF_SIZES:
        gradient = args[0]
        with plainly():
            return func(gradient._table.parameter, *args[1:], **kwargs)
    accepts = always if func in OF_THE_FORM else ON_ROWS.get(func)
    if accepts is None or not accepts(*args, **kwargs):
        return NotImplemented
    with plainly():
        found = func(*tree_map(plain, args), **tree_map(plain, kwargs))
    return args[0] if is_in_place(func) else found


def always(*_: Any, **__: Any) -> bool:
    return True


def by_scalar(_: Any, other: Any = None, **kwargs: Any) -> bool:
    """Return whether an operation's other operand is a scalar that leaves zero rows zero."""
    if isinstance(other, list | tuple):
        return all(by_scalar(None, each) for each in other)
    if kwargs or (isinstance(other, Tensor) and other.numel() != 1):
        return False
    return math.isfinite(other) and other != 0  # else rows of zeros become NaN, if only by division


def over_zero(_: Any, low: Any = None, high: Any = None, **kwargs: Any) -> bool:
    """Return whether a clamp to [low, high] leaves zero unchanged."""
    low, high = kwargs.get("min", low), kwargs.get("max", high)
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return False
    return (low is None or low <= 0) and (high is None or high >= 0)


def norm_of_whole(_: Any, order: Any = 2, dim: Any = None, *more: Any, **kwargs: Any) -> bool:
    order = kwargs.get("ord", kwargs.get("p", order))
    if order is None or order == "fro":
        order = 2
    whole = dim is None and kwargs.get("dim") is None and not more
    return whole and isinstance(order, int | float) and order > 0


def foreach_bound(_: Any, bound: Any, *, low: bool) -> bool:
    return isinstance(bound, int | float) and (bound <= 0 if low else bound >= 0)


T: Any = Tensor
ON_ROWS: dict[Any, Callable[..., bool]] = {
    T.mul_: by_scalar,
    T.__imul__: by_scalar,
    T.div_: by_scalar,
    T.__itruediv__: by_scalar,
    T.neg_: always,
    T.nan_to_num_: lambda _, nan=0.0, *more, **kwargs: not (nan or more or kwargs.get("nan")),
    T.clamp_: over_zero,
    T.clip_: over_zero,
    torch.clamp_: over_zero,
    T.sum: lambda _, *more, **kwargs: not (more or kwargs),
    torch.sum: lambda _, *more, **kwargs: not (more or kwargs),
    T.norm: norm_of_whole,
    torch.norm: norm_of_whole,
    torch.linalg.vector_norm: norm_of_whole,
    torch._foreach_norm: lambda _, order=2, **kwargs: kwargs.get("ord", order) > 0,
    torch._foreach_mul_: by_scalar,
    torch._foreach_div_: by_scalar,
    torch._foreach_clamp_min_: lambda _, bound: foreach_bound(_, bound, low=True),
    torch._foreach_clamp_max_: lambda _, bound: foreach_bound(_, bound, low=False),
    torch._amp_foreach_non_finite_check_and_unscale_: always,
}
"""Calls that give the stored rows of a gradient what they would give all, if the arguments pass."""

OF_SIZES = {
    T.shape.__get__,
    T.ndim.__get__,
    T.dim,
    T.is_contiguous,
    T.nelement,
    T.numel,
    T.size,
    T.stride,
    T.__len__,
    T.new_empty,
    T.new_full,
    T.new_ones,
    T.new_tensor,
    T.new_zeros,
    torch.empty_like,
    torch.full_like,
    torch.numel,
    torch.ones_like,
    torch.rand_like,
    torch.randn_like,
    torch.zeros_like,
}
PROPERTIES = (
    "dtype device layout requires_grad is_leaf grad_fn is_cuda is_sparse is_quantized is_meta "
    "is_mps is_xpu is_cpu is_mkldnn is_nested names output_nr retains_grad _version "
    "_backward_hooks _post_accumulate_grad_hooks grad_dtype"
)
OF_THE_FORM = OF_SIZES | {
    T.requires_grad.__set__,
    T.requires_grad_,
    T.element_size,
    T.get_device,
    T.is_complex,
    T.is_floating_point,
    T.register_post_accumulate_grad_hook,
    T.storage_offset,
    torch.is_complex,
    torch.is_floating_point,
    *(getattr(T, name).__get__ for name in PROPERTIES.split() if hasattr(T, name)),
}
"""Calls that read no value."""


def get_grad(tensor: Tensor) -> Any:
    if not isinstance(tensor, RowwiseParameter):
        return NotImplemented
    return None if tensor._table.hidden else tensor._table.gradient()


def set_grad(tensor: Tensor, gradient: Tensor | None) -> Any:
    if not isinstance(tensor, RowwiseParameter):
        return NotImplemented
    tensor._table.hidden = False
    tensor._table.fill_slot(gradient)
    return None


def delete_grad(tensor: Tensor) -> Any:
    return set_grad(tensor, None)


def set_data(tensor: Tensor, data: Tensor) -> Any:
    if isinstance(tensor, RowGradient):  # `Module.to`, after the parameter's own data
        tensor.become(data.all_rows() if isinstance(data, RowGradient) else plain(data))
        return None
    if not isinstance(tensor, RowwiseParameter):
        return NotImplemented
    table = tensor._table
    if data.dtype not in TERMS:
        table.give_back(f"it became {data.dtype}")
        tensor.data = plain(data)
        return None
    table.settle()
    with plainly():
        tensor.data = plain(data)
    table.adopt()
    return None


def same_rows(gradient: Tensor) -> Any:
    """Implement `data` and `detach` of a gradient by rows: return the gradient itself."""
    return gradient if isinstance(gradient, RowGradient) else NotImplemented


def zero_rows(gradient: Any) -> Any:
    """Set a gradient by rows to zero by dropping its rows.

    Otherwise, the rows of all batches would accumulate.
    """
    if not isinstance(gradient, RowGradient) or not gradient._slot.is_sparse:
        return NotImplemented
    table, slot = gradient._table, gradient._slot
    gradient._stored.zero_()
    if table.slot() is slot:
        # Of memory of its own: autograd resizes it.
        empty = torch.sparse_coo_tensor(
            torch.empty(1, 0, dtype=torch.int64, device=slot.device),
            gradient._stored.new_empty(0, slot.shape[1]),
            slot.shape,
            is_coalesced=True,
            check_invariants=False,
        )
        table.fill_slot(empty)
    return gradient


def zero_each(gradients: Any) -> Any:
    others = [each for each in gradients if zero_rows(each) is NotImplemented]
    if others:
        with plainly():
            torch._foreach_zero_([plain(each) for each in others])
    return None


def embed(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001
) -> Any:
    if not isinstance(weight, RowwiseParameter) or max_norm is not None or scale_grad_by_freq:
        return NotImplemented
    weight._table.read(input)
    with plainly():
        return F.embedding(input, weight, padding_idx, sparse=True)


def embed_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,  # noqa: ARG001
    **kwargs: Any,
) -> Any:
    if not isinstance(weight, RowwiseParameter) or max_norm is not None or scale_grad_by_freq:
        return NotImplemented
    weight._table.read(input)
    with plainly():
        return F.embedding_bag(
            input, weight, offsets, None, norm_type, False, mode, mode != "max", **kwargs
        )


def rows_of(weight: Tensor, ids: Any) -> Any:
    """Implement `weight[ids]` of a row-wise parameter, for an integer tensor of ids."""
    if (
        not isinstance(weight, RowwiseParameter)
        or not isinstance(ids, Tensor)
        or ids.dtype not in (torch.int64, torch.int32)
        or not ids.dim()
    ):
        return NotImplemented
    return embed(torch.where(ids < 0, ids + len(weight), ids), weight)


def index_rows(input: Tensor, dim: int, index: Tensor) -> Any:
    return rows_of(input, index) if dim == 0 else NotImplemented


def autograd_grad(*args: Any, **kwargs: Any) -> Any:
    """Implement `torch.autograd.grad` so that it returns gradients of all rows."""
    with plainly():
        found = torch.autograd.grad(*args, **kwargs)
    return tuple(each.to_dense() if each is not None and each.is_sparse else each for each in found)


HANDLERS: dict[Any, Callable[..., Any]] = {
    F.embedding: embed,
    F.embedding_bag: embed_bag,
    T.__getitem__: rows_of,
    T.index_select: index_rows,
    torch.index_select: index_rows,
    T.grad.__get__: get_grad,
    T.grad.__set__: set_grad,
    T.grad.__delete__: delete_grad,
    T.data.__get__: same_rows,
    T.data.__set__: set_data,
    T.detach: same_rows,
    T.detach_: same_rows,
    T.zero_: zero_rows,
    T.register_hook: add_hook,
    torch._foreach_zero_: zero_each,
    torch.autograd.grad: autograd_grad,
}
