"""The rules for Python: what a Dataset does for each sample, and a loop for each step. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.lint.complaint import Complaint

PANDAS: Final = frozenset({"iloc", "loc", "iat", "at"})
TENSORS: Final = frozenset(
    {"tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "Tensor"}
)
OWN_ORDER: Final = frozenset({"sampler", "batch_sampler", "shuffle"})
LOOPS: Final = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp)


def complaints(text: str, cores: int | None = None) -> list[Complaint]:
    """Of a Python file; `cores`: those that its rank will have, where they are known.

    Raises HpcncfError where it is not Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        where = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        raise HpcncfError(f"{where}not Python of this version: {error}") from None
    found = [*_in_datasets(tree), *_in_loops(tree), *_loaders(tree, cores), *_epochs(tree)]
    return sorted(set(found))


def _in_datasets(tree: ast.AST) -> Iterator[Complaint]:
    for function in _functions(tree, "__getitem__"):
        for node in ast.walk(function):
            yield from _per_sample(node)


def _functions(tree: ast.AST, name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            yield node


def _per_sample(node: ast.AST) -> Iterator[Complaint]:
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        if node.value.attr not in PANDAS:
            return
        yield Complaint(
            node.lineno,
            "pandas-per-sample",
            f".{node.value.attr} walks through pandas for each sample: take the columns out as "
            "arrays once, in __init__ (`self.users = frame['user'].to_numpy()`)",
        )
    if isinstance(node, ast.Call) and _called(node) in TENSORS and _is_torchs(node.func):
        yield Complaint(
            node.lineno,
            "tensor-per-sample",
            f"{_called(node)}() for each sample: index tensors that were made once, or add "
            "`__getitems__`, which makes a batch at a time",
        )
    if isinstance(node, ast.Call) and _is_list_of_difference(node):
        yield _difference(node)


def _called(call: ast.Call) -> str:
    """`tensor` of `torch.tensor(...)`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_torchs(function: ast.expr) -> bool:
    """`torch.tensor`, or `tensor` as imported from there; not a `tensor` of the user's own."""
    if not isinstance(function, ast.Attribute):
        return True
    return isinstance(function.value, ast.Name) and function.value.id in ("torch", "th")


def _is_list_of_difference(call: ast.Call) -> bool:
    """list(a - b), list(set(a) - set(b)), list(a.difference(b)), and as much sorted or a tuple."""
    if _called(call) not in ("list", "sorted", "tuple") or len(call.args) != 1:
        return False
    given = call.args[0]
    if isinstance(given, ast.Call):
        return isinstance(given.func, ast.Attribute) and given.func.attr == "difference"
    return isinstance(given, ast.BinOp) and isinstance(given.op, ast.Sub)


def _difference(call: ast.Call) -> Complaint:
    return Complaint(
        call.lineno,
        "set-difference",
        "a list of all items but the user's, each time anew, to draw a few from: draw an item and "
        "draw again where the user has it, or search the user's sorted items (docs/engines.md)",
    )


def _in_loops(tree: ast.AST) -> Iterator[Complaint]:
    for loop in ast.walk(tree):
        if not isinstance(loop, LOOPS):
            continue
        losses = _losses(loop)
        for node in ast.walk(loop):
            if isinstance(node, ast.Call) and _is_list_of_difference(node):
                yield _difference(node)
            yield from _kept(node, losses)
            if losses and isinstance(node, ast.Call) and _is_item_of(node, losses):
                yield Complaint(
                    node.lineno,
                    "synchronised-step",
                    ".item() in every step makes a GPU's launches wait for its results: sum "
                    "`loss.detach()` and take .item() once in a while; on a CPU it costs nothing",
                )


def _losses(loop: ast.AST) -> set[str]:
    """Names whose `.backward()` the loop calls."""
    return {
        node.func.value.id
        for node in ast.walk(loop)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
        and isinstance(node.func.value, ast.Name)
    }


def _is_item_of(call: ast.Call, losses: set[str]) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "item"
        and isinstance(function.value, ast.Name)
        and function.value.id in losses
    )


def _kept(node: ast.AST, losses: set[str]) -> Iterator[Complaint]:
    """`total += loss`, `losses.append(loss)`, `total = total + loss`: the tensor with its graph."""
    kept: ast.expr | None = None
    if not isinstance(node, ast.AugAssign | ast.Assign | ast.Call):
        return
    if isinstance(node, ast.AugAssign):
        kept = node.value
    elif isinstance(node, ast.Call) and _called(node) == "append" and node.args:
        kept = node.args[0]
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else None
        sides = [node.value.left, node.value.right]
        if any(isinstance(side, ast.Name) and side.id == name for side in sides):
            kept = next((side for side in sides if _is_graph(side, losses)), None)
    if kept is not None and _is_graph(kept, losses):
        yield Complaint(
            node.lineno,
            "kept-graph",
            "keeps the graph of every step, and memory grows: keep `loss.detach()`",
        )


def _is_graph(node: ast.AST, losses: set[str]) -> bool:
    """The loss itself, or arithmetic with it."""
    if isinstance(node, ast.BinOp):
        return _is_graph(node.left, losses) or _is_graph(node.right, losses)
    return isinstance(node, ast.Name) and node.id in losses


def _loaders(tree: ast.AST, cores: int | None) -> Iterator[Complaint]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node) != "DataLoader":
            continue
        given = {word.arg: word.value for word in node.keywords}
        if None not in given and not OWN_ORDER & set(given) and _trains(node):
            yield Complaint(
                node.lineno,
                "no-shuffle",
                "DataLoader without shuffle=True or a sampler: every epoch has the rows in the "
                "same order",
            )
        workers = given.get("num_workers")
        number = workers.value if isinstance(workers, ast.Constant) else None
        if cores is not None and isinstance(number, int) and number + 1 > cores:
            yield Complaint(
                node.lineno,
                "too-many-workers",
                f"{number} workers and the rank itself are {number + 1} processes on "
                f"{cores} core{'s' * (cores != 1)}: at most {max(cores - 1, 0)} workers",
            )


def _trains(loader: ast.Call) -> bool:
    """Whether its data set is called a training set: `DataLoader(train_data, ...)`."""
    data = [*loader.args[:1], *(word.value for word in loader.keywords if word.arg == "dataset")]
    names = [
        node.id if isinstance(node, ast.Name) else node.attr
        for each in data
        for node in ast.walk(each)
        if isinstance(node, ast.Name | ast.Attribute)
    ]
    return any("train" in name.lower() for name in names)


def _epochs(tree: ast.AST) -> Iterator[Complaint]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if any(_called(call) == "set_epoch" for call in calls):
        return
    for call in calls:
        shuffled = not any(
            word.arg == "shuffle"
            and isinstance(word.value, ast.Constant)
            and word.value.value is False
            for word in call.keywords
        )
        if _called(call) == "DistributedSampler" and shuffled:
            yield Complaint(
                call.lineno,
                "no-set-epoch",
                "its order is that of epoch 0 for ever: call sampler.set_epoch(epoch) before each "
                "epoch",
            )
