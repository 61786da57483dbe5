"""The rules for what a loop does in each of its turns. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from hpcncf.lint import calls
from hpcncf.lint.complaint import Complaint

COMPREHENSIONS: Final = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
LOOPS: Final = (ast.For, ast.AsyncFor, ast.While, *COMPREHENSIONS)
DRAWS: Final = frozenset({"choice", "choices", "sample", "shuffle", "permutation", "randperm"})
BACKWARD: Final = frozenset({"backward", "manual_backward"})
VALUES: Final = frozenset({"item", "detach", "tolist", "numpy"})


def complaints_loops(tree: ast.AST) -> Iterator[Complaint]:
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
    left = [node for node in _parts(loop) if id(node) not in once]
    while left:  # not by recursion: made code is nested deeper than Python's own limit
        node = left.pop()
        yield node
        left += _begins(node) if isinstance(node, LOOPS) else ast.iter_child_nodes(node)


def _parts(loop: ast.AST) -> Iterator[ast.AST]:
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
    if any(calls.name_calls(call) in DRAWS for call in found):
        yield from (calls.difference(call) for call in found if calls.is_list_of_difference(call))


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
        and calls.name_calls(node.value) in VALUES
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
        kept = calls.name_calls(node) == "append" and node.args
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
