"""Write a prepared folder from rows of any source, in bounded memory."""

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
    wrong_format_error,
    read_outline,
    read_manifest,
)
from hpcncf.ncf.data.prepared import load_prepared
from hpcncf.ncf.data.split import SplitCounts
from hpcncf.records.schema import write_text

# In memory are only the names: each user, each item and each text of a context column once.

MAX_TEXTS: Final = 256
"""Of a one-hot column: more is likely an identifier or a number with a typing error."""


@dataclass(frozen=True)
class Block:
    """Some rows of a table, in the order of the source."""

    users: list[Any]
    items: list[Any]
    context: dict[str, NDArray[np.float64] | list[str]]
    """Texts are to become one-hot."""
    times: NDArray[Any] | None
    where: Callable[[int], str]
    """The source and the row's place in it, of the nth row of the block."""


class Numbering(dict[Any, int]):
    """Name -> number, in the order in which the names come first."""

    def __missing__(self, name: Any) -> int:
        self[name] = number = len(self)
        return number

    def of(self, names: Iterable[Any]) -> NDArray[np.int32]:
        return np.fromiter(map(self.__getitem__, names), dtype=np.int32)

    def by_name(self) -> tuple[list[Any], NDArray[np.int32]]:
        """The names, sorted, and each number's place among them."""
        names = sorted(self)
        places = np.empty(len(names), dtype=np.int32)
        places[self.of(names)] = np.arange(len(names))
        return names, places


class TextColumn:
    """A context column of texts: one column of zeros and ones for each, in their sorted order."""

    def __init__(self, name: str, column: ColumnFile) -> None:
        self.name, self._column, self._numbers = name, column, Numbering()

    def append(self, values: Any, where: Callable[[int], str]) -> None:
        numbers = self._numbers.of(values)
        if len(self._numbers) > MAX_TEXTS:
            raise DataError(
                f"{where(int(np.argmax(numbers >= MAX_TEXTS)))}: context column {self.name!r}: "
                f"more than {MAX_TEXTS} different texts, as many can become columns of their "
                "own; group them, or leave it out"
            )
        self._column.append(numbers)

    def finish(self) -> list[str]:
        names, self._places = self._numbers.by_name()
        return [f"{self.name}={each}" for each in names]

    def block(self, span: slice) -> Floats:
        which = self._places[self._column[span]]
        columns = np.zeros((len(which), len(self._places)), dtype=np.float32)
        columns[np.arange(len(which)), which] = 1
        return columns


class NumberColumn:
    """A context column of numbers, kept as they are."""

    def __init__(self, name: str, column: ColumnFile) -> None:
        self.name, self._column = name, column

    def append(self, values: Any, where: Callable[[int], str]) -> None:
        too_large = np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)
        if len(too_large):
            at = int(too_large[0])
            raise DataError(
                f"{where(at)}: {self.name}: {values[at]} is more than single precision holds: "
                "scale the column, or leave it out"
            )
        self._column.append(values)

    def finish(self) -> list[str]:
        return [self.name]

    def block(self, span: slice) -> Floats:
        return self._column[span][:, None]


class RenumberedColumn:
    """A column of numbers given in order of appearance, read as their places in sorted order."""

    def __init__(self, column: ColumnFile, places: NDArray[np.int32]) -> None:
        self._column, self._places = column, places

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, span: slice, /) -> NDArray[Any]:
        numbers: NDArray[np.int32] = self._column[span]
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
        return np.concatenate([none, *(each.block(span) for each in self._columns)], axis=1)


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


class Spool:
    """Files that take a table's blocks. What each context column is follows from the first row."""

    def __init__(self, folder: Path, first: Block, files: ExitStack) -> None:
        def column(name: str, kind: DTypeLike) -> ColumnFile:
            return files.enter_context(ColumnFile(folder / name, kind))

        self._users, self._user_numbers = column("users", np.int32), Numbering()
        self._items, self._item_numbers = column("items", np.int32), Numbering()
        self._times = None if first.times is None else column("times", first.times.dtype)
        self._context: dict[str, TextColumn | NumberColumn] = {
            name: TextColumn(name, column(f"context-{number}", np.int32))
            if isinstance(values, list)
            else NumberColumn(name, column(f"context-{number}", np.float32))
            for number, (name, values) in enumerate(first.context.items())
        }

    def append(self, block: Block) -> None:
        self._users.append(self._user_numbers.of(block.users))
        self._items.append(self._item_numbers.of(block.items))
        for name, values in block.context.items():
            self._context[name].append(values, block.where)
        if self._times is not None:
            self._times.append(block.times)

    def finish(self) -> SpooledRows:
        user_names, user_places = self._user_numbers.by_name()
        item_names, item_places = self._item_numbers.by_name()
        context = list(self._context.values())
        return SpooledRows(
            users=RenumberedColumn(self._users, user_places),
            items=RenumberedColumn(self._items, item_places),
            context_columns=[name for each in context for name in each.finish()],
            context=ContextColumns(len(self._users), context),
            user_names=user_names,
            item_count=len(item_names),
            times=self._times,
        )


@contextmanager
def spool_rows(into: Path, source: Path, blocks: Iterable[Block]) -> Iterator[SpooledRows]:
    """A table's rows in files, beside the folder's own and gone at the end.

    Raises DataError where the table has no row.
    """
    blocks = iter(blocks)
    first = next(blocks, None)
    if first is None:
        raise DataError(f"{source}: has no rows")
    with TemporaryDirectory(dir=into, prefix=".rows-") as folder, ExitStack() as files:
        spool = Spool(Path(folder), first, files)
        for block in chain([first], blocks):
            spool.append(block)
        yield spool.finish()


@dataclass(frozen=True)
class Recipe:
    """All that a prepared folder's content follows from: equal recipes, equal bytes."""

    dataset: str
    source: dict[str, Any]
    """`name`, and `sha256` where there is a file."""
    options: dict[str, Any]

    @property
    def key(self) -> str:
        told = {
            "format": FORMAT_VERSION,
            "dataset": self.dataset,
            "input": self.source.get("sha256"),
            "options": self.options,
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class PreparedFolder:
    manifest: Manifest
    outcome: Literal["made", "replaced", "already there"]


def write_prepared(
    folder: Path, recipe: Recipe, title: str, fill: Callable[[Path], SplitCounts], force: bool = False
) -> PreparedFolder:
    """Make the folder, its arrays by `fill`: built beside it under another name, then renamed, so
    whole or not at all.

    What already holds the same content is left alone. Raises DataError where the folder holds
    something else and `force` is not given, and where it holds no prepared data at all.
    """
    folder = folder.absolute()
    try:
        replaces = (folder / MANIFEST_NAME).exists()
        found = _existing(folder, force) if replaces else None
        if found is not None and found.key == recipe.key:
            return PreparedFolder(found, "already there")
        if not force or not replaces:
            _refuse_to_lose(folder, found, recipe)
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = _beside(folder)
        partial.mkdir()
        try:
            manifest = _fill(partial, recipe, title, fill)
            _swap(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        where = error.filename or folder
        raise DataError(f"{where}: cannot be written: {error.strerror}") from None
    except MemoryError as error:
        raise DataError(f"{folder}: not enough memory to make it: {error}") from None
    return PreparedFolder(manifest, "replaced" if replaces else "made")


def _existing(folder: Path, force: bool) -> Manifest | None:
    try:
        found = read_manifest(folder)
    except DataError as error:
        if force:
            return None
        if isinstance(error, OtherFormat):
            raise wrong_format_error(folder, read_outline(folder), "replace it with --force") from None
        raise DataError(f"{error}, with --force") from None
    try:
        load_prepared(folder)
    except DataError:  # which ends with the command that makes it again
        if force:
            return None
        raise
    return found


def _refuse_to_lose(folder: Path, found: Manifest | None, recipe: Recipe) -> None:
    if found is not None:
        raise WrongRequest(
            f"{folder}: already holds other data: {found.title} (key {found.key[:12]}), "
            f"not {recipe.dataset} with these options (key {recipe.key[:12]}): "
            "choose another folder with -o, or replace it with --force"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongRequest(
            f"{folder}: holds something that is not prepared data (no {MANIFEST_NAME}): "
            "choose another folder with -o"
        )


def _beside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{token_hex(4)}")


def _swap(partial: Path, folder: Path) -> None:
    """Put the finished folder in its place; the one it replaces is gone only afterwards."""
    if not folder.exists() or not any(folder.iterdir()):
        partial.rename(folder)
        return
    old = _beside(folder)
    folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old)


def _fill(folder: Path, recipe: Recipe, title: str, fill: Callable[[Path], SplitCounts]) -> Manifest:
    counts = fill(folder)
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
