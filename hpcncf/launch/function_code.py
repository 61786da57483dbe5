"""Identify a function by a hash of its code and of the values that it depends on."""

from __future__ import annotations

import builtins
import dis
import hashlib
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hpcncf.records.user_code import UserCode, hash_modules, is_user_file
from hpcncf.worker.unpicklable import global_names, nested_codes


@dataclass
class FunctionCode:
    """The code written by the user that a function's result depends on."""

    sha256: str
    unfollowed: list[str] = field(default_factory=list)
    """Places, in words, whose changes go unnoticed."""


def hash_function(function: Callable[..., Any]) -> FunctionCode:
    """Hash a function's code, with the values and the user's modules that it depends on.

    The place of a function in its file, comments and dates are no part of it.
    """
    found = _References()
    digest = found.hash_value(function)
    code: UserCode = hash_modules(sorted(found.modules))
    whole = hashlib.sha256(f"{digest}\0{code.sha256()}".encode()).hexdigest()
    return FunctionCode(whole, [*found.unfollowed, *code.unfollowed])


class _References:
    """Hashes of values, where functions and classes are described by their code."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        """Modules whose files are part of the code."""
        self.unfollowed: list[str] = []
        self._named: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        """Functions and classes by their ids, with their descriptions."""

    def hash_value(self, value: Any) -> str:
        return hashlib.sha256(self._describe(value)).hexdigest()

    def _describe(self, value: Any) -> bytes:
        file = io.BytesIO()
        pickler = _ByCode(file, self)
        # Without memory: equal text is one object here and two there.
        pickler.fast = True
        try:
            pickler.dump(value)
        except (RecursionError, ValueError):  # it holds itself
            return self._describe_nested(value)
        except Exception as error:
            self.unfollowed.append(f"a value of type {type(value).__qualname__}: {error}")
            return type(value).__qualname__.encode()
        return file.getvalue()

    def _describe_nested(self, value: Any) -> bytes:
        file = io.BytesIO()
        try:
            _ByCode(file, self).dump(value)
        except Exception as error:
            self.unfollowed.append(f"a value of type {type(value).__qualname__}: {error}")
            return type(value).__qualname__.encode()
        return file.getvalue()

    def describe_reference(self, value: Any) -> tuple[Any, ...] | None:
        """Describe a module, function or class by its code, and a set without its order.

        None for anything else: it counts by its value.
        """
        if isinstance(value, types.ModuleType):
            self.modules.add(value.__name__)
            return ("module", value.__name__)
        if isinstance(value, set | frozenset):
            return ("set", sorted(self.hash_value(each) for each in value))
        if isinstance(value, types.CodeType):
            return ("code", *self._code_parts(value))
        if isinstance(value, types.FunctionType | type):
            if id(value) not in self._named:
                # Of one that refers to itself, the name says enough there.
                self._named[id(value)] = value, ("itself", value.__qualname__)
                self._named[id(value)] = value, self._describe_named(value)
            return self._named[id(value)][1]
        # Pickles of torch's tensors hold addresses.
        if hasattr(value, "untyped_storage") and type(value).__module__.startswith("torch"):
            return self._describe_tensor(value)
        return None

    def _describe_tensor(self, value: Any) -> tuple[Any, ...]:
        kind = ("tensor", str(value.dtype), tuple(value.shape), bool(value.requires_grad))
        try:
            flat = value.detach().cpu().contiguous().flatten()
            return (*kind, flat.view(sys.modules["torch"].uint8).numpy().tobytes())
        except Exception as error:
            self.unfollowed.append(f"a tensor: {error}")
            return kind

    def _describe_named(self, value: Any) -> tuple[Any, ...]:
        module = value.__module__ or ""
        name = getattr(value, "__qualname__", "")
        if self._is_imported(value, module, name):
            self.modules.add(module)
            return ("of module", module, name)
        if isinstance(value, type):
            return ("class", name, *(self.hash_value(each) for each in self._class_parts(value)))
        for inner in global_modules(value):
            self.modules.add(inner)
        return ("function", name, *(self.hash_value(each) for each in function_parts(value)))

    def _is_imported(self, value: Any, module: str, name: str) -> bool:
        """Return whether a worker imports the object, so that its module's file is hashed.

        Otherwise the object's present value is hashed.
        """
        if module in ("__main__", "__mp_main__") or "<locals>" in name:
            # One that a library made, as by a decorator of functools, is the library's.
            file = getattr(sys.modules.get(module), "__file__", None)
            return module not in ("__main__", "__mp_main__") and not is_user_file(file)
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        file = getattr(sys.modules.get(module), "__file__", None)
        return found is value or not is_user_file(file)

    def _class_parts(self, kind: type) -> Iterator[Any]:
        yield kind.__bases__
        for name, value in sorted(vars(kind).items()):
            if name in ("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__"):
                continue
            if isinstance(value, classmethod | staticmethod):
                value = value.__func__
            elif isinstance(value, property):
                value = (value.fget, value.fset, value.fdel)
            yield (name, value)

    def _code_parts(self, code: types.CodeType) -> Iterator[Any]:
        """Yield the parts of a code object that determine its behaviour.

        File name and line numbers are left out.
        """
        yield from (code.co_name, code.co_code, code.co_names, code.co_varnames)
        yield from (code.co_freevars, code.co_cellvars, code.co_flags)
        yield from (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        yield from (self.hash_value((type(each).__name__, each)) for each in code.co_consts)
        self.modules |= imported_names(code)


class _ByCode(pickle.Pickler):
    def __init__(self, file: io.BytesIO, references: _References) -> None:
        super().__init__(file, protocol=4)
        self._references = references

    def persistent_id(self, value: Any) -> Any:
        return self._references.describe_reference(value)


def function_parts(function: types.FunctionType) -> Iterator[Any]:
    """Yield the function's code, and every value that the code can reach by name."""
    yield function.__code__
    yield (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield None
    for name in sorted(global_names(function.__code__)):
        if name in function.__globals__:
            yield (name, function.__globals__[name])
        elif not hasattr(builtins, name):
            yield (name, "missing")
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield wrapped


def global_modules(function: types.FunctionType) -> set[str]:
    """Return names of modules that the function reaches by attribute, as in `package.module`."""
    names = {name for part in nested_codes(function.__code__) for name in part.co_names}
    found, new = (
        set[str](),
        {
            value.__name__
            for name in names
            if isinstance(value := function.__globals__.get(name), types.ModuleType)
        },
    )
    while new:
        found |= new
        inner = {f"{module}.{name}" for module in new for name in names}
        new = {name for name in inner if name in sys.modules} - found
    return found


def imported_names(code: types.CodeType) -> set[str]:
    """Return names of modules that a function's code imports when it is called."""
    found, module = set(), ""
    for each in dis.get_instructions(code):
        if each.opname == "IMPORT_NAME":
            module = each.argval
            found.add(module)
        elif each.opname == "IMPORT_FROM":  # perhaps a module of a package
            found.add(f"{module}.{each.argval}")
    return found
