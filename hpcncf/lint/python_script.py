"""The rules for Python: what a Dataset does for each sample, how batches are asked for. Pure."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.lint import calls, loops
from hpcncf.lint.complaint import Complaint

PANDAS: Final = frozenset({"iloc", "loc", "iat", "at"})
TENSORS: Final = frozenset(
    {"tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "Tensor"}
)
OWN_ORDER: Final = frozenset({"sampler", "batch_sampler", "shuffle"})
SHUFFLE_AT: Final = 2  # DataLoader(dataset, batch_size, shuffle)
EVALUATED: Final = ("test", "val", "eval")


def complaints(text: str, cores: int | None = None, epoch_is_set: bool = False) -> list[Complaint]:
    """Of a Python file; `cores`: those that its rank will have, where they are known;
    `epoch_is_set`: by another file of the program.

    Raises HpcncfError where it is not Python.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of a string's escapes: not our subject
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        where = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        raise HpcncfError(f"{where}not Python of this version: {error}") from None
    found = [*_in_datasets(tree), *loops.complaints(tree), *_loaders(tree, cores)]
    if not epoch_is_set:
        found += _epochs(tree)
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
    if isinstance(node, ast.Call) and calls.name(node) in TENSORS and _is_torchs(node.func):
        yield Complaint(
            node.lineno,
            "tensor-per-sample",
            f"{calls.name(node)}() for each sample: index tensors that were made once, or add "
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
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or calls.name(node) != "DataLoader":
            continue
        given = {word.arg: word.value for word in node.keywords}
        by_place = len(node.args) > SHUFFLE_AT
        if not by_place and not {None, *OWN_ORDER} & set(given) and _trains(node):
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
    return any("train" in name.lower() for name in _names_of_data(loader))


def _names_of_data(call: ast.Call) -> list[str]:
    data = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "dataset")]
    return [
        node.id if isinstance(node, ast.Name) else node.attr
        for each in data
        for node in ast.walk(each)
        if isinstance(node, ast.Name | ast.Attribute)
    ]


def _epochs(tree: ast.AST) -> Iterator[Complaint]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and calls.name(call) == "DistributedSampler":
            names = "".join(_names_of_data(call)).lower()
            if _may_shuffle(call) and not any(word in names for word in EVALUATED):
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
