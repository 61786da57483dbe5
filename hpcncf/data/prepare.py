"""Write a prepared folder, complete or not at all, and never over other data by accident."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import IO, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

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
from hpcncf.data.split import Interactions, RowBlock, fits_a_byte, leave_one_out
from hpcncf.files import write_text

ROWS_OF_BLOCK: Final = 1 << 18
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
        raise DataError(f"{folder}: not enough memory to prepare it: {error}") from None
    return PreparedFolder(manifest, "replaced" if replaces else "made")


def write_blocks(
    folder: Path,
    recipe: Recipe,
    title: str,
    source: Path,
    blocks: Iterable[NamedBlock],
    force: bool,
) -> PreparedFolder:
    """Prepare the rows of a table, holding out one row of each user for testing."""

    def fill(into: Path) -> dict[str, Any]:
        with TemporaryFile(dir=into) as file:
            rows = spool_rows(file, source, blocks)
            return leave_one_out(
                into, rows, recipe.options["seed"], recipe.options["test_negatives"]
            )

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
class NamedBlock:
    """Some rows of a table, with the source's names of users and items."""

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
        """Sorted names, and the place of each number's name among them."""
        names = sorted(self)
        places = np.empty(len(names), dtype=np.int32)
        places[self.number(names)] = np.arange(len(names))
        return names, places


def spool_rows(file: IO[bytes], source: Path, blocks: Iterable[NamedBlock]) -> Interactions:
    """Write a table's rows to a temporary file, with numbers in place of names.

    Memory holds each name once. Texts of a context column become one-hot columns, sorted by
    text.

    Raises DataError if there is no row, or if a value does not fit.
    """
    blocks = iter(blocks)
    first = next(blocks, None)
    if first is None:
        raise DataError(f"{source}: has no rows")
    users, items = Numbering(), Numbering()
    texts = {name: Numbering() for name, each in first.context.items() if isinstance(each, list)}
    small = dict.fromkeys(first.context, True)
    times = np.int64 if first.times is None else first.times.dtype
    kind = np.dtype(
        [
            *(("user", np.int32), ("item", np.int32), ("time", times)),
            ("context", np.float32, (len(first.context),)),
        ]
    )
    for block in chain([first], blocks):
        rows = np.zeros(len(block.users), kind)
        rows["user"], rows["item"] = users.number(block.users), items.number(block.items)
        if block.times is not None:
            rows["time"] = block.times
        for number, (name, values) in enumerate(block.context.items()):
            if name in texts:
                numbers = texts[name].number(values)
                _check_few_texts(name, numbers, block.where)
                rows["context"][:, number] = numbers
            else:
                _check_single_precision(name, np.asarray(values), block.where)
                rows["context"][:, number] = values
                small[name] = small[name] and fits_a_byte(rows["context"][:, number])
        file.write(rows.data)
    user_names, user_places = users.by_name()
    item_names, item_places = items.by_name()
    sorted_texts = {name: numbering.by_name() for name, numbering in texts.items()}

    def read() -> Iterator[RowBlock]:
        file.seek(0)
        while len(rows := np.fromfile(file, kind, ROWS_OF_BLOCK)):
            columns = [np.empty((len(rows), 0), dtype=np.float32)]
            for name, values in zip(first.context, rows["context"].T, strict=True):
                if name in sorted_texts:
                    names, places = sorted_texts[name]
                    columns.append(np.eye(len(names), dtype=np.float32)[places][values.astype(int)])
                else:
                    columns.append(values[:, None])
            yield RowBlock(
                user_places[rows["user"]],
                item_places[rows["item"]],
                np.concatenate(columns, axis=1),
                None if first.times is None else rows["time"],
            )

    names_of = {
        name: [f"{name}={each}" for each in sorted_texts[name][0]] if name in texts else [name]
        for name in first.context
    }
    counts = np.zeros(len(user_names), dtype=np.int64)
    for each in read():
        counts += np.bincount(each.users, minlength=len(counts))
    return Interactions(
        read,
        counts,
        user_names,
        len(item_names),
        context_columns=[column for names in names_of.values() for column in names],
        small=[small[name] for name, names in names_of.items() for _ in names],
    )


def _check_few_texts(name: str, numbers: NDArray[np.int32], where: Callable[[int], str]) -> None:
    too_many = np.flatnonzero(numbers >= MAX_TEXTS)
    if len(too_many):
        raise DataError(
            f"{where(int(too_many[0]))}: context column {name!r}: more than {MAX_TEXTS} different "
            "texts, the most that become one-hot columns. Group them, or leave the column out"
        )


def _check_single_precision(
    name: str, values: NDArray[np.float64], where: Callable[[int], str]
) -> None:
    too_large = np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)
    if len(too_large):
        at = int(too_large[0])
        raise DataError(
            f"{where(at)}: {name}: {values[at]} does not fit into single precision. "
            "Scale the column, or leave it out"
        )
