"""Find what in a value cannot be pickled, so that an error can name it."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any, Final

from hpcncf.errors import HpcncfError

MAX_DEPTH: Final = 50


class UnpicklableError(HpcncfError):
    """A value that cannot be pickled, and so cannot be sent to another process."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """What pickle said."""


def find_unpicklable(value: Any, name: str = "", depth: int = 0) -> str | None:
    """Describe the first part of the value that cannot be pickled; None if there is none."""
    if depth > MAX_DEPTH or _can_be_pickled(value):
        return None
    for part, inner in _named_parts(value):
        found = find_unpicklable(inner, f"{name}{part}" if name else part, depth + 1)
        if found is not None:
            return found
    return f"{name}, a {type(value).__qualname__}," if name else None


def _named_parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.MethodType):
        yield "the object of the method", value.__self__
        value = value.__func__
    if isinstance(value, types.FunctionType):
        for name in sorted(global_names(value.__code__) & set(value.__globals__)):
            inner = value.__globals__[name]
            if inner is not value:
                yield f"the global `{name}` (used in {value.__qualname__})", inner
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=False):
            try:
                inner = cell.cell_contents
            except ValueError:
                continue
            if inner is not value:
                yield f"the variable `{name}` (used in {value.__qualname__})", inner
        for number, inner in enumerate(value.__defaults__ or ()):
            yield f"default value {number + 1} of {value.__qualname__}", inner
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield f"[{key!r}]", inner
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield f"[{number}]", inner
    elif not isinstance(value, type):
        for name, inner in getattr(value, "__dict__", {}).items():
            yield f".{name}", inner
        for key in ("args", "__cause__", "__context__") * isinstance(value, BaseException):
            yield f".{key}", getattr(value, key)


def _can_be_pickled(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def global_names(code: types.CodeType) -> set[str]:
    """Return the global names that a code object and the functions inside it use."""
    return {
        each.argval
        for part in nested_codes(code)
        for each in dis.get_instructions(part)
        if each.opname.endswith(("_GLOBAL", "_NAME"))
    }


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and the code objects of all functions inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from nested_codes(each)
