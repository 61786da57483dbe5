"""The code that a command or a function runs, as far as its user wrote it.

Followed from a script or a module through its imports, without running anything. Python's own
library and installed packages are no part of it, nor are comments, blank lines and dates.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import io
import os
import shlex
import site
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final, Literal

CODE: Final = (".py", ".sh", ".pyx", ".c", ".cc", ".cpp", ".cu", ".h", ".jl", ".R")
SETTINGS: Final = (".yaml", ".yml", ".toml", ".ini", ".cfg")
"""A JSON file that a command names is as often what it writes."""
MAX_FILES: Final = 5_000
MAX_BYTES: Final = 20_000_000
"""Of one file: a larger one is data."""
PACKAGE: Final = Path(__file__).parents[1]


@dataclass
class UserCode:
    """Files of the user's own code, by the name under which they run."""

    digests: dict[str, str] = field(default_factory=dict)
    """Name of a module or script -> SHA-256 of its content."""
    unfollowed: list[str] = field(default_factory=list)
    """Places, in words, whose code could not be found without running them."""

    def sha256(self) -> str | None:
        """One hash of all files; None without any."""
        if not self.digests:
            return None
        text = "".join(f"{name}\0{digest}\0" for name, digest in sorted(self.digests.items()))
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def hash_command_code(
    words: Sequence[str], folder: Path, settings: Sequence[str] = SETTINGS
) -> UserCode:
    """Hash the code of a command: its scripts, modules, settings, and what they import."""
    found = _Followed(_search_path(folder), folder)
    for kind, name in name_command_code(words, settings):
        found.add_program(name) if kind == "module" else found.add_script(name)
    return found.code


def name_command_code(
    words: Sequence[str], settings: Sequence[str] = SETTINGS
) -> list[tuple[Literal["module", "script"], str]]:
    """Return the words of a command that name code or settings."""
    words = [part for word in words for part in _split(word)]
    found: list[tuple[Literal["module", "script"], str]] = []
    for before, word in zip(["", *words], words, strict=False):
        name = word.partition("=")[2] if word.startswith("-") else word
        if before == "-m":
            found.append(("module", name))
        elif name.endswith((*CODE, *settings)) or (not before and os.sep in name):
            found.append(("script", name))
    return found


def hash_modules(names: Iterable[str]) -> UserCode:
    """Hash the code of this process's modules with these names, and of what they import."""
    found = _Followed([each or str(Path.cwd()) for each in sys.path], Path.cwd(), sys.modules)
    for name in names:
        found.add_module(name)
    return found.code


def is_user_file(path: str | Path | None) -> bool:
    """Whether a file belongs to neither Python, nor an installed package, nor hpcncf."""
    if path is None or not Path(path).is_absolute():
        return False
    places = {str(path), os.path.realpath(path)}
    return not any(each.startswith(_library_folders()) for each in places)


@cache
def _library_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_paths()[name] for name in names}
    folders |= {*site.getsitepackages(), site.getusersitepackages(), str(PACKAGE)}
    folders |= {os.path.realpath(each) for each in folders}
    return tuple(f"{each.rstrip(os.sep)}{os.sep}" for each in folders)


def _split(word: str) -> list[str]:
    """Words of a command; a word that is a shell line is split into several."""
    try:
        parts = shlex.split(word, comments=True) if any(c.isspace() for c in word) else [word]
    except ValueError:
        parts = word.split()
    return [each.strip(";&|()") for each in parts]


def _search_path(folder: Path) -> list[str]:
    given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return [str(folder), *(str(folder / each) for each in given)]


class _Followed:
    """Follows imports from file to file, and collects those of the user's; each is read once."""

    def __init__(
        self, path: Sequence[str], folder: Path, loaded: Mapping[str, ModuleType] | None = None
    ) -> None:
        self.code = UserCode()
        self._loaded = loaded or {}
        self._path = list(path)
        self._folder = folder
        self._seen: set[str] = set()
        importlib.invalidate_caches()  # a module may have been written a moment ago

    def add_script(self, name: str) -> None:
        """Add a file, named by its path from the folder in which the command starts."""
        path = self._folder / name
        if path.is_file() and name not in self._seen:
            self._seen.add(name)
            if path.suffix == ".py":  # Python puts a script's folder on its path
                self._path.insert(0, str(path.parent))
            self._add_file(name, path, package="")

    def add_program(self, name: str) -> None:
        """Add the module that `python -m NAME` runs."""
        self.add_module(name)
        self.add_module(f"{name}.__main__")

    def add_module(self, name: str) -> None:
        """Add a module and its packages, unless it is installed rather than the user's."""
        path: Sequence[str] | None = self._path
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            part = ".".join(parts[:end])
            spec = self._find(part, path)
            if spec is None:
                return
            path = spec.submodule_search_locations
            if spec.origin and not is_user_file(spec.origin):
                return
            if part not in self._seen:
                self._seen.add(part)
                is_package = path is not None
                if spec.origin:
                    package = part if is_package else part.rpartition(".")[0]
                    self._add_file(part, Path(spec.origin), package)
            if path is None:
                return

    def _find(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        # An editable installation is found by its own finder, which has run if it was imported.
        spec: ModuleSpec | None = getattr(self._loaded.get(name), "__spec__", None)
        if spec is not None:
            return spec
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top == PACKAGE.name:
            return None
        try:
            return PathFinder.find_spec(name, path)
        except (ImportError, ValueError):
            return None

    def _add_file(self, name: str, path: Path, package: str) -> None:
        if len(self.code.digests) >= MAX_FILES:
            self._leave(f"{path}: one of more than {MAX_FILES} files")
            return
        try:
            if path.stat().st_size > MAX_BYTES:
                self._leave(f"{path}: larger than {MAX_BYTES // 1_000_000} MB")
                return
            content = path.read_bytes()
        except OSError as error:
            self._leave(f"{path}: {error.strerror}")
            return
        first_line = content[:200].partition(b"\n")[0]
        is_python = path.suffix == ".py" or (first_line[:2] == b"#!" and b"python" in first_line)
        if is_python:
            content = without_comments(content)
        self.code.digests[name] = hashlib.sha256(content).hexdigest()
        if is_python:
            self._follow_imports(path, content, package)
        elif path.suffix == ".sh":
            for line in content.decode(errors="replace").splitlines():
                found = _split(line)
                for before, word in zip(["", *found], found, strict=False):
                    if before == "-m":
                        self.add_program(word)
                    elif word.endswith(CODE):
                        self.add_script(word)

    def _follow_imports(self, path: Path, content: bytes, package: str) -> None:
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError, RecursionError):
            self._leave(f"{path}: cannot be parsed")
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.add_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(package, node.level, node.module)
                if base:
                    self.add_module(base)
                for alias in node.names:  # each may be a module of the package
                    self.add_module(f"{base}.{alias.name}".lstrip("."))
            elif isinstance(node, ast.Call):
                self._follow_call(path, node, package)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._add_named_file(path, node.value)

    def _follow_call(self, path: Path, node: ast.Call, package: str) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in ("import_module", "__import__") or not node.args:
            return
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            bare = first.value.lstrip(".")
            self.add_module(_absolute(package, len(first.value) - len(bare), bare))
        else:
            self._leave(f"{path}:{node.lineno}: imports a module whose name is computed")

    def _add_named_file(self, path: Path, text: str) -> None:
        """Add a script whose name the code contains and which it may start."""
        if not text.endswith(CODE) or len(text) > 200 or "\n" in text or "\0" in text:
            return
        for folder in (self._folder, path.parent):
            file = Path(os.path.normpath(folder / text))
            if file != path and file.is_file() and is_user_file(file) and text not in self._seen:
                self._seen.add(text)
                self._add_file(text, file, package="")

    def _leave(self, text: str) -> None:
        if text not in self.code.unfollowed:
            self.code.unfollowed.append(text)


def _absolute(package: str, level: int, name: str | None) -> str:
    """Full name of the module in `from ..name import`, where two dots are `level` 2."""
    if not level:
        return name or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{name}".strip(".") if name else base


def without_comments(source: bytes) -> bytes:
    """Python source without comments and blank lines; unchanged if it cannot be parsed."""
    comments: dict[int, int] = {}
    blank: set[int] = set()
    try:
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type == tokenize.COMMENT:
                comments[token.start[0]] = token.start[1]
            elif token.type == tokenize.NL and not token.line.strip():
                blank.add(token.start[0])
        lines = source.decode("utf-8-sig").split("\n")
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        return source
    kept = []
    for number, line in enumerate(lines, 1):
        text = line[: comments[number]].rstrip() if number in comments else line.rstrip("\r")
        # PEP 263 gives the encoding in a comment of the first two lines.
        if number not in blank and (text or number not in comments):
            kept.append(text)
    return "\n".join(kept).encode().rstrip(b"\n") + b"\n"
