"""The rules for Python: what a Dataset does for each sample, how batches are asked for. Pure."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.lint import batch_script, calls, loops
from hpcncf.lint.complaint import Complaint

PANDAS: Final = frozenset({"iloc", "loc", "iat", "at"})
TENSORS: Final = frozenset(
    {"tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "Tensor"}
)
OWN_ORDER: Final = frozenset({"sampler", "batch_sampler", "shuffle"})
SHUFFLE_AT: Final = 2  # DataLoader(dataset, batch_size, shuffle)
EVALUATED: Final = ("test", "val", "eval")
LIGHTNING: Final = "train_dataloader"


def complaints_python_script(
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
    found = [*_in_datasets(tree), *loops.complaints_loops(tree), *_loaders(tree, cores)]
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
    if isinstance(node, ast.Call) and calls.name_calls(node) in TENSORS and _is_torchs(node.func):
        yield Complaint(
            node.lineno,
            "tensor-per-sample",
            f"{calls.name_calls(node)}() for each sample: index tensors that were made once, or add "
            "`__getitems__`, which makes a batch at a time",
        )
    if isinstance(node, ast.Call) and calls.is_list_of_difference(node):
        yield calls.difference(node)


def _is_torchs(function: ast.expr) -> bool:
    """`torch.tensor`, or `tensor` as imported from there; not a `tensor` of the user's own."""
    if not isinstance(function, ast.Attribute):
        return True
    return isinstance(function.value, ast.Name) and function.value.id in ("torch", "th")


def _loaders(tree: ast.AST, cores: int | None) -> Iterator[Complaint]:
    trained_on = _trained_on(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or calls.name_calls(node) != "DataLoader":
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
        if isinstance(loop, ast.For | ast.AsyncFor) and loops.differentiates(loop)
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
            and calls.name_calls(call) == "DistributedSampler"
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
            yield batch_script.fixed_port(value.lineno, port[1])


def _is_port(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == "MASTER_PORT"
    )
