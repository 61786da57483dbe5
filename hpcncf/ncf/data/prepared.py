"""Open a prepared folder as memory-mapped arrays."""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpcncf.ncf.data.arrays import Floats, Int32s, Int64s, Sliced, is_positive, row_dtype, slices
from hpcncf.ncf.data.buckets import SLOTS
from hpcncf.ncf.data.manifest import MANIFEST_NAME, DataError, Manifest, advise_preparing_again, read_manifest


class ContextLayout:
    """Columns of any numbers first, then those of whole numbers from 0 to 255 only, such as the
    zeros and ones of a one-hot column; both in the order of their source."""

    def __init__(self, names: list[str], *contexts: Sliced) -> None:
        """Of so many columns, which each of `contexts` [rows, columns] has; read in one sweep."""
        fits = np.ones(len(names), dtype=np.bool_)
        for part in (context[span] for context in contexts for span in slices(len(context))):
            fits &= fits_a_byte(part)
            if not fits.any():
                break
        self._order = np.argsort(fits, kind="stable")
        self.names = [names[column] for column in self._order]
        self.small = int(fits.sum())

    def ordered(self, context: Floats) -> Floats:
        """[rows, columns] of the source, its columns as they are kept."""
        return context[:, self._order]


def fits_a_byte(context: Floats) -> NDArray[np.bool_]:
    """[columns]: whether each of its values comes back from a byte with the same bits, so that
    -0 does not."""
    with np.errstate(invalid="ignore"):  # what is no number from 0 to 255 becomes any byte
        back = context.astype(np.uint8).astype(np.float32)
    same = context.view(np.uint32) == back.view(np.uint32)
    fits: NDArray[np.bool_] = np.logical_and.reduce(same)
    return fits


@dataclass(frozen=True)
class Prepared:
    """A prepared folder's content; the arrays are read-only and memory-mapped."""

    manifest: Manifest
    train_rows: NDArray[Any]
    """[training rows], each a `rows.record`; `rows.context_of` makes floats of their context."""
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
    buckets_indptr: Int64s
    """[users + 1]: whose each bucket is, see data/buckets.py."""
    buckets: NDArray[np.uint16]
    """[buckets, SLOTS]"""

    @property
    def train_users(self) -> Int32s:
        return self.train_rows["user"]

    @property
    def train_items(self) -> Int32s:
        return self.train_rows["item"]

    @cached_property
    def test_unseen(self) -> NDArray[np.bool_]:
        """[test rows]: the pair does not occur in training."""
        held = np.empty(len(self.test_users), dtype=np.bool_)
        for part in slices(len(held)):
            users, items = self.test_users[part], self.test_items[part]
            held[part] = is_positive(self.positives, self.positives_indptr, users, items)
        return ~held


def load_prepared(folder: Path) -> Prepared:
    """Open a prepared folder.

    Raises DataError where it is missing or an array disagrees with the manifest.
    """
    manifest = read_manifest(folder)
    try:
        in_order = _mapped(folder, manifest)
        _ask_huge_pages(in_order)
        _check_ids(folder, in_order)
        return _mapped(folder, manifest)
    except DataError as error:
        raise DataError(f"{error}: {advise_preparing_again(folder, manifest)}") from None


def _mapped(folder: Path, manifest: Manifest) -> Prepared:
    train, test, columns = manifest.train_rows, manifest.test_rows, len(manifest.context_columns)
    row = row_dtype(columns - manifest.small_columns, manifest.small_columns)
    return Prepared(
        manifest,
        train_rows=_open(folder, "train_rows", row, (train,)),
        test_users=_open(folder, "test_users", np.int32, (test,)),
        test_items=_open(folder, "test_items", np.int32, (test,)),
        test_context=_open(folder, "test_context", np.float32, (test, columns)),
        test_negatives=_open(folder, "test_negatives", np.int32, (test, manifest.test_negatives)),
        positives_indptr=_open(folder, "positives_indptr", np.int64, (manifest.users + 1,)),
        positives=_open(folder, "positives", np.int32, (manifest.train_pairs,)),
        buckets_indptr=_open(folder, "buckets_indptr", np.int64, (manifest.users + 1,)),
        buckets=_open(folder, "buckets", np.uint16, (manifest.buckets, SLOTS)),
    )


def _ask_huge_pages(data: Prepared) -> None:
    """Of the kernel, for what its page cache does not hold yet. Only where the arrays are read in
    their order: every page that is not cached brings megabytes with it then."""
    for array in vars(data).values():
        mapped = getattr(array, "base", None)
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                mapped.madvise(mmap.MADV_HUGEPAGE)


def _check_ids(folder: Path, data: Prepared) -> None:
    """A tenth of a second for millions of rows; torch would end a rank with no word of the file.

    It also brings the arrays into the page cache in their order: training reads them at random.
    """
    users, items = data.manifest.users, data.manifest.items
    arrays: list[tuple[str, Int32s, int]] = [
        ("train_rows.npy: user", data.train_users, users),
        ("train_rows.npy: item", data.train_items, items),
        ("test_users.npy", data.test_users, users),
        ("test_items.npy", data.test_items, items),
        ("test_negatives.npy", data.test_negatives, items),
        ("positives.npy", data.positives, items),
    ]
    for part in slices(max(len(ids) for _, ids, _ in arrays)):
        for name, ids, end in arrays:
            _check_part(folder, name, ids, part, end)
    data.buckets.max(initial=0)  # only read: engine native checks them
    _check_bounds(folder, "positives_indptr", data.positives_indptr, len(data.positives), 0)
    _check_bounds(folder, "buckets_indptr", data.buckets_indptr, len(data.buckets), 1)
    everything = np.flatnonzero(np.diff(data.positives_indptr) >= data.manifest.items)
    if len(everything):
        raise DataError(
            f"{folder / 'positives_indptr'}.npy: user {everything[0]:,} has each of the "
            f"{data.manifest.items:,} items, so that no negative can be drawn"
        )


def _check_bounds(folder: Path, name: str, bounds: Int64s, end: int, least: int) -> None:
    """Of the users' parts of an array, each of `least` or more."""
    if bounds[0] != 0 or bounds[-1] != end or (np.diff(bounds) < least).any():
        rise = "always rise" if least else "never fall"
        raise DataError(f"{folder / name}.npy: expected bounds from 0 to {end:,} that {rise}")


def _check_part(folder: Path, name: str, ids: Int32s, part: slice, end: int) -> None:
    """Seen as unsigned, what is negative is too large."""
    some = ids[part].view(np.uint32)
    if some.size and some.max() >= end:
        at = np.unravel_index(some.argmax(), some.shape)
        raise DataError(
            f"{folder / name}: expected ids from 0 to {end - 1:,}, came {ids[part][at]} in row "
            f"{part.start + at[0]:,}"
        )


def _open(folder: Path, name: str, kind: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: not a whole .npy array: {error}") from None
    if (array.dtype, array.shape) != (np.dtype(kind), shape):
        raise DataError(
            f"{path}: {MANIFEST_NAME} tells of {np.dtype(kind)} {list(shape)}, the file holds "
            f"{array.dtype} {list(array.shape)}"
        )
    return array
