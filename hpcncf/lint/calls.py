"""What a call in Python's syntax tree is a call of."""

from __future__ import annotations

import ast

from hpcncf.lint.complaint import Complaint


def name_calls(call: ast.Call) -> str:
    """`tensor` of `torch.tensor(...)`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_list_of_difference(call: ast.Call) -> bool:
    """list(a - b), list(set(a) - set(b)), list(a.difference(b)), and as much sorted or a tuple."""
    if name_calls(call) not in ("list", "sorted", "tuple") or len(call.args) != 1:
        return False
    given = call.args[0]
    if isinstance(given, ast.Call):
        return isinstance(given.func, ast.Attribute) and given.func.attr == "difference"
    return isinstance(given, ast.BinOp) and isinstance(given.op, ast.Sub)


def difference(call: ast.Call) -> Complaint:
    return Complaint(
        call.lineno,
        "set-difference",
        "a list of all items but the user's, each time anew, to draw a few from: draw an item and "
        "draw again where the user has it, or search the user's sorted items (docs/engines.md)",
    )
