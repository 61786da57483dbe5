"""The prepared folder: a manifest and memory-mapped arrays, made once, shared by a node's ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data import manifest as manifests
from hpcncf.ncf.data.columns import slices
from hpcncf.ncf.data.manifest import NAME, DataError, Manifest
from hpcncf.ncf.data.rows import Floats, Int32s, Int64s, contains


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
        held = np.empty(len(self.test_users), dtype=np.bool_)
        for part in slices(len(held)):
            users, items = self.test_users[part], self.test_items[part]
            held[part] = contains(self.positives, self.positives_indptr, users, items)
        return ~held


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
    everything = np.flatnonzero(np.diff(ends) >= data.manifest.items)
    if len(everything):
        raise DataError(
            f"{folder / 'positives_indptr'}.npy: user {everything[0]:,} has each of the "
            f"{data.manifest.items:,} items, so that no negative can be drawn: prepare it again"
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
