"""Making the prepared folder: whole or not at all, and what is in it never lost by accident."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from hpcncf import records
from hpcncf.ncf.data.manifest import (
    FORMAT_VERSION,
    NAME,
    DataError,
    Manifest,
    OtherFormat,
    WrongRequest,
    other_format,
    outline,
    read,
)
from hpcncf.ncf.data.prepared import load
from hpcncf.ncf.data.splitting import Counts


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
class Written:
    manifest: Manifest
    outcome: Literal["made", "replaced", "already there"]


def write(
    folder: Path, recipe: Recipe, title: str, fill: Callable[[Path], Counts], force: bool = False
) -> Written:
    """Make the folder, its arrays by `fill`: built beside it under another name, then renamed, so
    whole or not at all.

    What already holds the same content is left alone. Raises DataError where the folder holds
    something else and `force` is not given, and where it holds no prepared data at all.
    """
    folder = folder.absolute()
    try:
        replaces = (folder / NAME).exists()
        found = _existing(folder, force) if replaces else None
        if found is not None and found.key == recipe.key:
            return Written(found, "already there")
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
    return Written(manifest, "replaced" if replaces else "made")


def _existing(folder: Path, force: bool) -> Manifest | None:
    try:
        found = read(folder)
    except DataError as error:
        if force:
            return None
        if isinstance(error, OtherFormat):
            raise other_format(folder, outline(folder), "replace it with --force") from None
        raise DataError(f"{error}, with --force") from None
    try:
        load(folder)
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
            f"{folder}: holds something that is not prepared data (no {NAME}): "
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


def _fill(folder: Path, recipe: Recipe, title: str, fill: Callable[[Path], Counts]) -> Manifest:
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
    records.write_text(folder / NAME, text + "\n")
    return manifest
