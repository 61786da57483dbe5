"""The prepared folder: a manifest and memory-mapped arrays, made once, shared by a node's ranks."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcncf import records
from hpcncf.ncf.data import manifest as manifests
from hpcncf.ncf.data.manifest import FORMAT_VERSION, NAME, DataError, Manifest, WrongRequest
from hpcncf.ncf.data.rows import Floats, Int32s, Int64s, Rows, Split, distinct_pairs


@dataclass(frozen=True)
class Prepared:
    """A prepared folder's content; the arrays are read-only and memory-mapped."""

    manifest: Manifest
    train_users: Int32s
    train_items: Int32s
    train_context: Floats
    """[training rows, context columns]"""
    test_users: Int32s
    test_items: Int32s
    test_context: Floats
    test_negatives: Int32s
    """[test rows, negatives]: items with no row of the test row's user at all."""
    positives_indptr: Int64s
    """[users + 1]"""
    positives: Int32s
    """Each user's training items, sorted, each once: those of user u are
    positives[positives_indptr[u]:positives_indptr[u + 1]]."""

    @cached_property
    def test_unseen(self) -> NDArray[np.bool_]:
        """[test rows]: the pair does not occur in training."""
        items, held = self.manifest.items, np.diff(self.positives_indptr)
        owners = np.repeat(np.arange(self.manifest.users, dtype=np.int64), held)
        test = self.test_users.astype(np.int64) * items + self.test_items
        return np.isin(test, owners * items + self.positives, invert=True)


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


def load(folder: Path) -> Prepared:
    """Open a prepared folder.

    Raises DataError where it is missing or an array disagrees with the manifest.
    """
    manifest = manifests.read(folder)
    train, test, columns = manifest.train_rows, manifest.test_rows, len(manifest.context_columns)
    prepared = Prepared(
        manifest,
        train_users=_open(folder, "train_users", np.int32, (train,)),
        train_items=_open(folder, "train_items", np.int32, (train,)),
        train_context=_open(folder, "train_context", np.float32, (train, columns)),
        test_users=_open(folder, "test_users", np.int32, (test,)),
        test_items=_open(folder, "test_items", np.int32, (test,)),
        test_context=_open(folder, "test_context", np.float32, (test, columns)),
        test_negatives=_open(folder, "test_negatives", np.int32, (test, manifest.test_negatives)),
        positives_indptr=_open(folder, "positives_indptr", np.int64, (manifest.users + 1,)),
        positives=_open(folder, "positives", np.int32, (manifest.train_pairs,)),
    )
    _check_ids(folder, prepared)
    return prepared


def _check_ids(folder: Path, data: Prepared) -> None:
    """Tens of milliseconds for millions of rows; torch would end a rank with no word of the file.

    Seen as unsigned, what is negative is too large.
    """
    below = {
        "train_users": data.manifest.users,
        "train_items": data.manifest.items,
        "test_users": data.manifest.users,
        "test_items": data.manifest.items,
        "test_negatives": data.manifest.items,
        "positives": data.manifest.items,
    }
    for name, end in below.items():
        ids: Int32s = getattr(data, name)
        if ids.size and ids.view(np.uint32).max() >= end:
            at = np.unravel_index(ids.view(np.uint32).argmax(), ids.shape)
            raise DataError(
                f"{folder / name}.npy: expected ids from 0 to {end - 1:,}, came {ids[at]} in row "
                f"{at[0]:,}: prepare it again"
            )
    ends = data.positives_indptr
    if ends[0] != 0 or ends[-1] != len(data.positives) or (ends[1:] < ends[:-1]).any():
        raise DataError(
            f"{folder / 'positives_indptr'}.npy: expected bounds from 0 to "
            f"{len(data.positives):,} that never fall: prepare it again"
        )


def _open(folder: Path, name: str, kind: type[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}: prepare it again") from None
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: not a whole .npy array: {error}: prepare it again") from None
    if (array.dtype, array.shape) != (np.dtype(kind), shape):
        raise DataError(
            f"{path}: {NAME} tells of {np.dtype(kind)} {list(shape)}, the file holds "
            f"{array.dtype} {list(array.shape)}: prepare it again"
        )
    return array


def write(
    folder: Path, recipe: Recipe, title: str, build: Callable[[], Split], force: bool = False
) -> Written:
    """Make the folder: built beside it under another name, then renamed, so whole or not at all.

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
            manifest = _fill(partial, recipe, title, build())
            _swap(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        # numpy's own error for a full disk has no strerror: "9000 requested and 992 written".
        where, why = error.filename or folder, error.strerror or f"disk full? {error}"
        raise DataError(f"{where}: cannot be written: {why}") from None
    except MemoryError as error:
        raise DataError(f"{folder}: not enough memory to make it: {error}") from None
    return Written(manifest, "replaced" if replaces else "made")


def _existing(folder: Path, force: bool) -> Manifest | None:
    try:
        return load(folder).manifest
    except DataError as error:
        if force:
            return None
        raise DataError(f"{error}, with --force") from None


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


def _fill(folder: Path, recipe: Recipe, title: str, split: Split) -> Manifest:
    arrays = _arrays(split)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    manifest = _manifest(recipe, title, split, len(arrays["positives"]))
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True)
    records.write_text(folder / NAME, text + "\n")
    return manifest


def _arrays(split: Split) -> dict[str, NDArray[Any]]:
    train, test = split.train, split.test
    indptr, positives = distinct_pairs(
        train.users, train.items, len(train.user_names), train.item_count
    )
    _refuse_insatiable(train, indptr)
    return {
        "train_users": train.users,
        "train_items": train.items,
        "train_context": train.context,
        "test_users": test.users,
        "test_items": test.items,
        "test_context": test.context,
        "test_negatives": split.test_negatives,
        "positives_indptr": indptr,
        "positives": positives,
    }


def _refuse_insatiable(train: Rows, indptr: Int64s) -> None:
    everything = np.flatnonzero(np.diff(indptr) == train.item_count)
    if len(everything):
        raise DataError(
            f"user {train.user_names[everything[0]]}: has a training row of each of the "
            f"{train.item_count} items, so that no negative can be drawn: leave the user out"
        )


def _manifest(recipe: Recipe, title: str, split: Split, train_pairs: int) -> Manifest:
    train, rows = split.train, len(split.train) + len(split.test)
    users, items, columns = len(train.user_names), train.item_count, train.context_columns
    context = f"{len(columns)} context columns" if columns else "no context"
    return Manifest(
        key=recipe.key,
        dataset=recipe.dataset,
        title=f"{title}: {rows:,} rows, {users:,} users, {items:,} items, {context}",
        source=recipe.source,
        options=recipe.options,
        users=users,
        items=items,
        rows=rows,
        train_rows=len(train),
        train_pairs=train_pairs,
        test_rows=len(split.test),
        context_columns=columns,
        test_negatives=split.test_negatives.shape[1],
    )
