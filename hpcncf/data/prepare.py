"""Write a prepared folder, complete or not at all, and never over other data by accident."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hpcncf.data.arrays import Floats, Interactions, Rows
from hpcncf.data.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    DataError,
    Manifest,
    OtherFormat,
    WrongRequest,
    read_manifest,
    read_outline,
    wrong_format_error,
)
from hpcncf.data.prepared import load_prepared
from hpcncf.data.split import leave_one_out, write_split
from hpcncf.files import write_text
from hpcncf.text import pluralize

BYTES_OF_ROW: Final = 80
"""Memory that a row takes while a table is prepared, without its context."""
BYTES_OF_VALUE: Final = 10
"""Memory that a context value takes while a table is prepared."""
MAX_TEXTS: Final = 256
"""Distinct texts of a one-hot column: more suggest an identifier or a mistyped number."""


@dataclass(frozen=True)
class Recipe:
    """Everything that a prepared folder's content follows from: equal recipes, equal bytes."""

    dataset: str
    source: dict[str, Any]
    """`name`, and `sha256` if there is a file."""
    options: dict[str, Any]

    @property
    def key(self) -> str:
        parts = {
            "format": FORMAT_VERSION,
            "dataset": self.dataset,
            "input": self.source.get("sha256"),
            "options": self.options,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class PreparedFolder:
    manifest: Manifest
    outcome: Literal["made", "replaced", "already there"]


def write_prepared(
    folder: Path,
    recipe: Recipe,
    title: str,
    fill: Callable[[Path], dict[str, Any]],
    force: bool = False,
) -> PreparedFolder:
    """Write a prepared folder, unless it already holds the same content.

    `fill` writes the arrays into a folder and returns the manifest's counts.

    The folder is built beside its place and then renamed. Raises DataError if it holds other data
    and `force` is not given, and always if it holds something that is not prepared data.
    """
    folder = folder.absolute()
    try:
        replaces = (folder / MANIFEST_NAME).exists()
        found = _read_existing(folder, force) if replaces else None
        if found is not None and found.key == recipe.key:
            return PreparedFolder(found, "already there")
        if not force or not replaces:
            _refuse_to_overwrite(folder, found, recipe)
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = _beside(folder)
        partial.mkdir()
        try:
            manifest = _write_manifest(partial, recipe, title, fill(partial))
            _swap(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        where = error.filename or folder
        raise DataError(f"{where}: cannot be written: {error.strerror}") from None
    except MemoryError as error:
        raise DataError(
            f"{folder}: not enough memory to prepare it: {error}. Prepare a sample of the rows, or "
            "use a machine with more memory"
        ) from None
    return PreparedFolder(manifest, "replaced" if replaces else "made")


def write_interactions(
    folder: Path, recipe: Recipe, title: str, read: Callable[[], Interactions], force: bool
) -> PreparedFolder:
    """Prepare the rows of a table, holding out one row of each user for testing.

    `read` is not called if the folder already holds the same content.
    """

    def fill(into: Path) -> dict[str, Any]:
        seed, test_negatives = recipe.options["seed"], recipe.options["test_negatives"]
        # Nothing here keeps the table: its memory is free while the split is written.
        return write_split(into, leave_one_out(read(), seed, test_negatives))

    return write_prepared(folder, recipe, title, fill, force)


def _read_existing(folder: Path, force: bool) -> Manifest | None:
    """Read the manifest of a usable folder; None if `force` lets an unusable one be replaced.

    Otherwise raises DataError.
    """
    try:
        found = read_manifest(folder)
    except DataError as error:
        if force:
            return None
        if isinstance(error, OtherFormat):
            advice = "Replace it with --force"
            raise wrong_format_error(folder, read_outline(folder), advice) from None
        raise DataError(f"{error}, with --force") from None
    try:
        load_prepared(folder)
    except DataError:  # its message ends with the command that prepares it again
        if force:
            return None
        raise
    return found


def _refuse_to_overwrite(folder: Path, found: Manifest | None, recipe: Recipe) -> None:
    if found is not None:
        raise WrongRequest(
            f"{folder}: already holds other data: {found.title} (key {found.key[:12]}), "
            f"not {recipe.dataset} with these options (key {recipe.key[:12]}). "
            "Choose another folder with -o, or replace it with --force"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongRequest(
            f"{folder}: holds something that is not prepared data (no {MANIFEST_NAME}). "
            "Choose another folder with -o"
        )


def _beside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{token_hex(4)}")


def _swap(partial: Path, folder: Path) -> None:
    """Move the finished folder into place, then delete the folder that it replaces."""
    if not folder.exists() or not any(folder.iterdir()):
        partial.rename(folder)
        return
    old = _beside(folder)
    folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old)


def _write_manifest(
    folder: Path, recipe: Recipe, title: str, counts: Mapping[str, Any]
) -> Manifest:
    rows, columns = counts["train_rows"] + counts["test_rows"], len(counts["context_columns"])
    about = f"{rows:,} rows, {counts['users']:,} users, {counts['items']:,} items"
    context = f"{columns} context columns" if columns else "no context"
    manifest = Manifest(
        key=recipe.key,
        dataset=recipe.dataset,
        title=f"{title}: {about}, {context}",
        source=recipe.source,
        options=recipe.options,
        rows=rows,
        **counts,
    )
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True)
    write_text(folder / MANIFEST_NAME, text + "\n")
    return manifest


@dataclass(frozen=True)
class CodedColumn:
    """A column of names or texts, as numbers."""

    names: Any
    """Distinct values, sorted."""
    numbers: NDArray[np.int32]
    """[rows]: the place of each row's value among them."""

    @classmethod
    def from_codes(cls, names: Sequence[Any], codes: NDArray[np.int32]) -> Self:
        """Build the column from codes into `names`, which are in any order."""
        order = sorted(range(len(names)), key=names.__getitem__)
        places = np.empty(len(names), dtype=np.int32)
        places[order] = np.arange(len(names))
        return cls([names[at] for at in order], places[codes])

    @classmethod
    def from_numbers(cls, values: Any) -> Self:
        """Build the column of values that are numbers."""
        names, numbers = np.unique(values, return_inverse=True)
        return cls(names, numbers.astype(np.int32))


class Numbering(dict[Any, int]):
    """A column of names or texts that is numbered block by block, and each name's number."""

    def __init__(self) -> None:
        super().__init__()
        self._codes = list[NDArray[np.int32]]()

    def __missing__(self, name: Any) -> int:
        self[name] = number = len(self)
        return number

    def append(self, names: Sequence[Any]) -> NDArray[np.int32]:
        """Add rows; returns their codes, which count names as they first appear."""
        self._codes.append(np.fromiter(map(self.__getitem__, names), dtype=np.int32))
        return self._codes[-1]

    def column(self) -> CodedColumn:
        return CodedColumn.from_codes(list(self), np.concatenate(self._codes))


def build_rows(
    source: Path,
    users: CodedColumn,
    items: CodedColumn,
    context: Mapping[str, CodedColumn | Floats],
    available_bytes: int | None = None,
) -> Rows:
    """Build a table's rows; texts of a context column become one-hot columns, sorted by text.

    Raises WrongRequest if they do not fit in memory.
    """
    names = list[str]()
    for name, column in context.items():
        if isinstance(column, CodedColumn):
            names += [f"{name}={text}" for text in column.names]
        else:
            names.append(name)
    rows = len(users.numbers)
    check_memory(source, rows, len(names), available_bytes)
    matrix = np.zeros((rows, len(names)), dtype=np.float32)
    first = 0
    for column in context.values():
        if isinstance(column, CodedColumn):
            matrix[np.arange(rows), first + column.numbers] = 1
            first += len(column.names)
        else:
            matrix[:, first] = column
            first += 1
    return Rows(users.numbers, items.numbers, matrix, names, users.names, len(items.names))


def check_memory(
    source: Path | str, rows: int, columns: int, available_bytes: int | None, about: str = ""
) -> None:
    """Check that a table fits in memory while it is prepared. Raises WrongRequest if it does not.

    `about` goes before the number of rows if that is an estimate.
    """
    needed = rows * (BYTES_OF_ROW + BYTES_OF_VALUE * columns)
    if available_bytes is not None and needed > available_bytes:
        raise WrongRequest(
            f"{source}: {about}{rows:,} rows with {pluralize(columns, 'context column')} need "
            f"{_format_bytes(needed)} of memory to prepare, and {_format_bytes(available_bytes)} "
            "are available. Prepare a sample of the rows, leave out context columns, or use a "
            "larger machine"
        )


def _format_bytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def estimate_rows(path: Path) -> int:
    """Estimate the rows of a text file by the lines of its first MiB."""
    with path.open("rb") as file:
        begins = file.read(1 << 20)
    return begins.count(b"\n") * path.stat().st_size // max(1, len(begins))


def check_few_texts(name: str, codes: NDArray[np.int32], where: Callable[[int], str]) -> None:
    """Check that a column has few enough texts for one-hot columns. Raises DataError if not.

    `codes` number the texts in the order in which they first appear.
    """
    too_many = np.flatnonzero(codes >= MAX_TEXTS)
    if len(too_many):
        raise DataError(
            f"{where(int(too_many[0]))}: context column {name!r}: more than {MAX_TEXTS} different "
            "texts, the most that become one-hot columns. Group them, or leave the column out"
        )


def to_single_precision(name: str, values: NDArray[Any], where: Callable[[int], str]) -> Floats:
    """Convert a context column. Raises DataError with the place of a number that is too large."""
    too_large = np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)
    if len(too_large):
        at = int(too_large[0])
        raise DataError(
            f"{where(at)}: {name}: {values[at]} does not fit into single precision. "
            "Scale the column, or leave it out"
        )
    return values.astype(np.float32)
