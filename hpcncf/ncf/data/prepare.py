"""Write a prepared folder, complete or not at all, and never over other data by accident.

A table is spooled first: its rows go to files with numbers in place of names while the source is
read. Memory holds only the names: each user, item and text of a context column once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpcncf.ncf.data.arrays import ColumnFile, Floats, Sliced
from hpcncf.ncf.data.manifest import (
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
from hpcncf.ncf.data.prepared import load_prepared
from hpcncf.ncf.data.split import Report, SplitCounts, leave_one_out
from hpcncf.records.schema import write_text

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
    fill: Callable[[Path], SplitCounts],
    force: bool = False,
) -> PreparedFolder:
    """Write the folder, its arrays by `fill`, unless it already holds the same content.

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
        raise DataError(f"{folder}: not enough memory to prepare it: {error}") from None
    return PreparedFolder(manifest, "replaced" if replaces else "made")


def write_blocks(
    folder: Path,
    recipe: Recipe,
    title: str,
    source: Path,
    blocks: Iterable[Block],
    force: bool,
    report: Report,
) -> PreparedFolder:
    """`write_prepared` of a table's rows, one of each user held out by the recipe's seed."""

    def fill(into: Path) -> SplitCounts:
        with spool_rows(into, source, blocks) as rows:
            seed, negatives = recipe.options["seed"], recipe.options["test_negatives"]
            return leave_one_out(into, rows, seed, negatives, rows.times, report)

    return write_prepared(folder, recipe, title, fill, force)


def _read_existing(folder: Path, force: bool) -> Manifest | None:
    """The manifest of usable data there; None if unusable data may be replaced."""
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
    """Move the finished folder into place; the one it replaces is deleted only afterwards."""
    if not folder.exists() or not any(folder.iterdir()):
        partial.rename(folder)
        return
    old = _beside(folder)
    folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old)


def _write_manifest(folder: Path, recipe: Recipe, title: str, counts: SplitCounts) -> Manifest:
    rows, columns = counts.train_rows + counts.test_rows, counts.context_columns
    context = f"{len(columns)} context columns" if columns else "no context"
    manifest = Manifest(
        key=recipe.key,
        dataset=recipe.dataset,
        title=f"{title}: {rows:,} rows, {counts.users:,} users, {counts.items:,} items, {context}",
        source=recipe.source,
        options=recipe.options,
        rows=rows,
        **asdict(counts),
    )
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True)
    write_text(folder / MANIFEST_NAME, text + "\n")
    return manifest


@dataclass(frozen=True)
class Block:
    """Some rows of a table, in the order of the source."""

    users: list[Any]
    items: list[Any]
    context: dict[str, NDArray[np.float64] | list[str]]
    """Texts become one-hot columns."""
    times: NDArray[Any] | None
    where: Callable[[int], str]
    """The source and the place in it of the block's nth row."""


class Numbering(dict[Any, int]):
    """Name -> number, in the order in which names first appear."""

    def __missing__(self, name: Any) -> int:
        self[name] = number = len(self)
        return number

    def number(self, names: Iterable[Any]) -> NDArray[np.int32]:
        return np.fromiter(map(self.__getitem__, names), dtype=np.int32)

    def by_name(self) -> tuple[list[Any], NDArray[np.int32]]:
        """The names, sorted, and each number's place among them."""
        names = sorted(self)
        places = np.empty(len(names), dtype=np.int32)
        places[self.number(names)] = np.arange(len(names))
        return names, places


class TextColumn:
    """A context column of texts: one column of zeros and ones for each, in their sorted order."""

    def __init__(self, name: str, file: ColumnFile) -> None:
        self.name, self._file, self._numbering = name, file, Numbering()

    def append(self, values: Any, where: Callable[[int], str]) -> None:
        numbers = self._numbering.number(values)
        if len(self._numbering) > MAX_TEXTS:
            raise DataError(
                f"{where(int(np.argmax(numbers >= MAX_TEXTS)))}: context column {self.name!r}: "
                f"more than {MAX_TEXTS} different texts, the most that become one-hot columns. "
                "Group them, or leave the column out"
            )
        self._file.append(numbers)

    def finish(self) -> list[str]:
        """The names of its columns."""
        names, self._places = self._numbering.by_name()
        return [f"{self.name}={each}" for each in names]

    def read(self, span: slice) -> Floats:
        which = self._places[self._file[span]]
        columns = np.zeros((len(which), len(self._places)), dtype=np.float32)
        columns[np.arange(len(which)), which] = 1
        return columns


class NumberColumn:
    """A context column of numbers, kept as they are."""

    def __init__(self, name: str, file: ColumnFile) -> None:
        self.name, self._file = name, file

    def append(self, values: Any, where: Callable[[int], str]) -> None:
        too_large = np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)
        if len(too_large):
            at = int(too_large[0])
            raise DataError(
                f"{where(at)}: {self.name}: {values[at]} does not fit into single precision. "
                "Scale the column, or leave it out"
            )
        self._file.append(values)

    def finish(self) -> list[str]:
        return [self.name]

    def read(self, span: slice) -> Floats:
        return self._file[span][:, None]


class RenumberedColumn:
    """Numbers in order of appearance, read as their places in sorted order."""

    def __init__(self, file: ColumnFile, places: NDArray[np.int32]) -> None:
        self._file, self._places = file, places

    def __len__(self) -> int:
        return len(self._file)

    def __getitem__(self, span: slice, /) -> NDArray[Any]:
        numbers: NDArray[np.int32] = self._file[span]
        return self._places[numbers]


class ContextColumns:
    """Context columns side by side."""

    def __init__(self, length: int, columns: list[TextColumn | NumberColumn]) -> None:
        self._length, self._columns = length, columns

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, span: slice, /) -> NDArray[Any]:
        start, stop, _ = span.indices(self._length)
        none = np.empty((stop - start, 0), dtype=np.float32)
        return np.concatenate([none, *(each.read(span) for each in self._columns)], axis=1)


@dataclass(frozen=True)
class SpooledRows:
    """Interactions in files."""

    users: Sliced
    items: Sliced
    context: Sliced
    context_columns: list[str]
    user_names: list[Any]
    item_count: int
    times: Sliced | None


@contextmanager
def spool_rows(into: Path, source: Path, blocks: Iterable[Block]) -> Iterator[SpooledRows]:
    """The rows of a table in temporary files inside the folder.

    The first row decides which context columns are texts. Raises DataError if there is no row.
    """
    blocks = iter(blocks)
    first = next(blocks, None)
    if first is None:
        raise DataError(f"{source}: has no rows")
    with TemporaryDirectory(dir=into, prefix=".rows-") as folder, ExitStack() as files:

        def file(name: str, kind: DTypeLike) -> ColumnFile:
            return files.enter_context(ColumnFile(Path(folder, name), kind))

        users, user_numbering = file("users", np.int32), Numbering()
        items, item_numbering = file("items", np.int32), Numbering()
        times = None if first.times is None else file("times", first.times.dtype)
        context: dict[str, TextColumn | NumberColumn] = {
            name: TextColumn(name, file(f"context-{number}", np.int32))
            if isinstance(values, list)
            else NumberColumn(name, file(f"context-{number}", np.float32))
            for number, (name, values) in enumerate(first.context.items())
        }
        for block in chain([first], blocks):
            users.append(user_numbering.number(block.users))
            items.append(item_numbering.number(block.items))
            for name, values in block.context.items():
                context[name].append(values, block.where)
            if times is not None:
                times.append(block.times)
        user_names, user_places = user_numbering.by_name()
        item_names, item_places = item_numbering.by_name()
        yield SpooledRows(
            users=RenumberedColumn(users, user_places),
            items=RenumberedColumn(items, item_places),
            context_columns=[name for each in context.values() for name in each.finish()],
            context=ContextColumns(len(users), list(context.values())),
            user_names=user_names,
            item_count=len(item_names),
            times=times,
        )
