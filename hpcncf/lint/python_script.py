"""Lint rules for Python scripts."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.lint.batch_script import Complaint, fixed_port


def called_name(call: ast.Call) -> str:
    """`tensor` of `torch.tensor(...)`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_list_of_difference(call: ast.Call) -> bool:
    """list(a - b), list(set(a) - set(b)), list(a.difference(b)), and as much sorted or a tuple."""
    if called_name(call) not in ("list", "sorted", "tuple") or len(call.args) != 1:
        return False
    given = call.args[0]
    if isinstance(given, ast.Call):
        return isinstance(given.func, ast.Attribute) and given.func.attr == "difference"
    return isinstance(given, ast.BinOp) and isinstance(given.op, ast.Sub)


def set_difference(call: ast.Call) -> Complaint:
    return Complaint(
        call.lineno,
        "set-difference",
        "a list of all items but the user's, each time anew, to draw a few from: draw an item and "
        "draw again where the user has it, or search the user's sorted items (docs/engines.md)",
    )


COMPREHENSIONS: Final = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
LOOPS: Final = (ast.For, ast.AsyncFor, ast.While, *COMPREHENSIONS)
DRAWS: Final = frozenset({"choice", "choices", "sample", "shuffle", "permutation", "randperm"})
BACKWARD: Final = frozenset({"backward", "manual_backward"})
VALUES: Final = frozenset({"item", "detach", "tolist", "numpy"})


def _loop_complaints(tree: ast.AST) -> Iterator[Complaint]:
    for loop in ast.walk(tree):
        if isinstance(loop, LOOPS):
            turn = list(_turn(loop))
            yield from _differences(turn)
            yield from _steps(turn)


def differentiates(loop: ast.For | ast.AsyncFor) -> bool:
    """Whether its turns are steps of a training."""
    return bool(_losses(list(_turn(loop))))


def _turn(loop: ast.AST) -> Iterator[ast.AST]:
    """What each turn runs; of a loop inside, which is looked at by itself, what begins it."""
    once = {id(node) for node in _begins(loop)}
    left = [node for node in _loop_parts(loop) if id(node) not in once]
    while left:  # not by recursion: made code is nested deeper than Python's own limit
        node = left.pop()
        yield node
        left += _begins(node) if isinstance(node, LOOPS) else ast.iter_child_nodes(node)


def _loop_parts(loop: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(loop):
        is_clause = isinstance(child, ast.comprehension)
        yield from ast.iter_child_nodes(child) if is_clause else [child]


def _begins(loop: ast.AST) -> list[ast.AST]:
    """What a loop runs once, before its first turn."""
    if isinstance(loop, ast.For | ast.AsyncFor):
        return [loop.iter]
    return [loop.generators[0].iter] if isinstance(loop, COMPREHENSIONS) else []


def _differences(turn: list[ast.AST]) -> Iterator[Complaint]:
    """Where something is drawn as well: a list of what is left has other uses."""
    found = [node for node in turn if isinstance(node, ast.Call)]
    if any(called_name(call) in DRAWS for call in found):
        yield from (set_difference(call) for call in found if is_list_of_difference(call))


def _steps(turn: list[ast.AST]) -> Iterator[Complaint]:
    losses = _losses(turn)
    seldom = {id(node) for each in turn if isinstance(each, ast.If) for node in _seldom(each)}
    for node in turn if losses else ():
        if _is_kept(node, losses - _values(turn)):
            yield Complaint(
                node.lineno,  # type: ignore[attr-defined]  # a statement or a call
                "kept-graph",
                "keeps the graph of every step, and memory grows: keep `loss.detach()`",
            )
        if isinstance(node, ast.Call) and _is_item_of(node, losses) and id(node) not in seldom:
            yield Complaint(
                node.lineno,
                "synchronised-step",
                ".item() in every step makes a GPU's launches wait for its results: sum "
                "`loss.detach()` and take .item() once in a while; on a CPU it costs nothing",
            )


def _losses(nodes: list[ast.AST]) -> set[str]:
    """Names that are differentiated: `loss.backward()`, `scaler.scale(loss / 4).backward()`,
    `accelerator.backward(loss)`."""
    calls_ = (node for node in nodes if isinstance(node, ast.Call))
    return {name for call in calls_ for name in _differentiated(call)}


def _differentiated(call: ast.Call) -> set[str]:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in BACKWARD:
        return set()
    if isinstance(function.value, ast.Name) and not call.args:
        return {function.value.id}
    # Its receiver may be the loss or who differentiates it, its argument the loss or a gradient.
    inside = [node for part in (function.value, *call.args) for node in ast.walk(part)]
    return {each.id for each in inside if isinstance(each, ast.Name) and "loss" in each.id}


def _seldom(condition: ast.If) -> list[ast.AST]:
    """What runs in some steps only: `if step % 100 == 0: print(loss.item())`."""
    inside = [node for part in condition.body for node in ast.walk(part)]
    return [] if _losses(inside) else inside


def _values(turn: list[ast.AST]) -> set[str]:
    """Names that are given a value without a graph: `loss = loss.item()`."""
    return {
        target.id
        for node in turn
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and called_name(node.value) in VALUES
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_item_of(call: ast.Call, losses: set[str]) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "item"
        and isinstance(function.value, ast.Name)
        and function.value.id in losses
    )


def _is_kept(node: ast.AST, losses: set[str]) -> bool:
    """`total += loss`, `losses.append(loss)`, `total = total + loss`; not `loss = loss + penalty`,
    which is differentiated."""
    if isinstance(node, ast.AugAssign):
        return not _is_graph(node.target, losses) and _is_graph(node.value, losses)
    if isinstance(node, ast.Call):
        kept = called_name(node) == "append" and node.args
        return bool(kept) and _is_graph(node.args[0], losses)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else None
        sides = [node.value.left, node.value.right]
        adds_up = any(isinstance(side, ast.Name) and side.id == name for side in sides)
        return adds_up and name not in losses and any(_is_graph(side, losses) for side in sides)
    return False


def _is_graph(node: ast.AST, losses: set[str]) -> bool:
    """The loss itself, or arithmetic with it."""
    if isinstance(node, ast.BinOp):
        return _is_graph(node.left, losses) or _is_graph(node.right, losses)
    return isinstance(node, ast.Name) and node.id in losses


PANDAS: Final = frozenset({"iloc", "loc", "iat", "at"})
TENSORS: Final = frozenset(
    {"tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "Tensor"}
)
OWN_ORDER: Final = frozenset({"sampler", "batch_sampler", "shuffle"})
SHUFFLE_AT: Final = 2  # DataLoader(dataset, batch_size, shuffle)
EVALUATED: Final = ("test", "val", "eval")
LIGHTNING: Final = "train_dataloader"


def check_python(
    text: str, cores: int | None = None, epoch_is_set: bool = False, in_array: bool = False
) -> list[Complaint]:
    """Of a Python file; `cores`: those that its rank will have, where they are known;
    `epoch_is_set`: by another file of the program; `in_array`: an array of jobs starts it.

    Raises HpcncfError where it is not Python.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of a string's escapes: not our subject
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        where, what = "", str(error)
        if isinstance(error, SyntaxError):
            where, what = f"line {error.lineno}: ", error.msg
        raise HpcncfError(f"{where}not Python of this version: {what}") from None
    found = [*_in_datasets(tree), *_loop_complaints(tree), *_loaders(tree, cores)]
    if not epoch_is_set:
        found += _epochs(tree)
    if in_array:
        found += _ports(tree)
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
    if isinstance(node, ast.Call) and called_name(node) in TENSORS and _is_torchs(node.func):
        yield Complaint(
            node.lineno,
            "tensor-per-sample",
            f"{called_name(node)}() for each sample: index tensors that were made once, or add "
            "`__getitems__`, which makes a batch at a time",
        )
    if isinstance(node, ast.Call) and is_list_of_difference(node):
        yield set_difference(node)


def _is_torchs(function: ast.expr) -> bool:
    """`torch.tensor`, or `tensor` as imported from there; not a `tensor` of the user's own."""
    if not isinstance(function, ast.Attribute):
        return True
    return isinstance(function.value, ast.Name) and function.value.id in ("torch", "th")


def _loaders(tree: ast.AST, cores: int | None) -> Iterator[Complaint]:
    trained_on = _trained_on(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or called_name(node) != "DataLoader":
            continue
        given = {word.arg: word.value for word in node.keywords}
        by_place = len(node.args) > SHUFFLE_AT
        trains = _trains(node) or (id(node) in trained_on and not _evaluates(node))
        if not by_place and not {None, *OWN_ORDER} & set(given) and trains:
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
                f"{cores} core{'s' * (cores != 1)}: "
                f"{f'num_workers at most {cores - 1}' if cores > 1 else 'no workers'}",
            )


def _trains(loader: ast.Call) -> bool:
    """Whether its data set is called a training set: `DataLoader(train_data, ...)`."""
    return any("train" in name.lower() for name in _names_of_data(loader))


def _evaluates(loader: ast.Call) -> bool:
    names = "".join(_names_of_data(loader)).lower()
    return any(word in names for word in EVALUATED)


def _trained_on(tree: ast.AST) -> set[int]:
    """Calls of DataLoader, by their id, whose batches a loop differentiates, or that a function
    such as Lightning's `train_dataloader` makes."""
    looped = {
        name
        for loop in ast.walk(tree)
        if isinstance(loop, ast.For | ast.AsyncFor) and differentiates(loop)
        for name in _names(loop.iter)
    }
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and looped & {
            name for target in node.targets for name in _names(target)
        }:
            found.add(id(node.value))
        if isinstance(node, ast.FunctionDef) and LIGHTNING in node.name:
            found |= {id(each) for each in ast.walk(node)}
    return found


def _names(tree: ast.AST) -> list[str]:
    return [
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    ]


def _names_of_data(call: ast.Call) -> list[str]:
    data = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "dataset")]
    return [name for each in data for name in _names(each)]


def _epochs(tree: ast.AST) -> Iterator[Complaint]:
    for call in ast.walk(tree):
        if (
            isinstance(call, ast.Call)
            and called_name(call) == "DistributedSampler"
            and _may_shuffle(call)
            and not _evaluates(call)
        ):
            yield Complaint(
                call.lineno,
                "no-set-epoch",
                "its order is that of epoch 0 for ever: call sampler.set_epoch(epoch) before "
                "each epoch",
            )


def _may_shuffle(sampler: ast.Call) -> bool:
    return not any(
        word.arg == "shuffle" and isinstance(word.value, ast.Constant) and not word.value.value
        for word in sampler.keywords
    )


def _ports(tree: ast.AST) -> Iterator[Complaint]:
    """`os.environ["MASTER_PORT"] = "29500"`, `init_method="tcp://127.0.0.1:29500"`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(map(_is_port, node.targets)):
            value: ast.expr = node.value
        elif isinstance(node, ast.keyword) and node.arg == "init_method":
            value = node.value
        else:
            continue
        text = str(value.value) if isinstance(value, ast.Constant) else ""
        port = re.fullmatch(r"(?:tcp://.*:)?(\d+)", text)
        if port:
            yield fixed_port(value.lineno, port[1])


def _is_port(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == "MASTER_PORT"
    )
