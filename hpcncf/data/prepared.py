"""Open a prepared folder: a manifest and memory-mapped arrays; score it by counts alone."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcncf.data.arrays import Floats, Int32s, Int64s, row_dtype
from hpcncf.data.manifest import (
    MANIFEST_NAME,
    TOP_K,
    DataError,
    Manifest,
    advise_preparing_again,
    array_types,
    read_manifest,
)
from hpcncf.data.negatives import find_positives

TEST_ROWS_AT_ONCE: Final = 1 << 10  # with their negatives, more do not fit into the cache
TRAIN_ROWS_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True)
class PreparedData:
    """A prepared folder's content; the arrays are read-only and memory-mapped."""

    manifest: Manifest
    train_rows: NDArray[Any]
    """[training rows] of `arrays.row_dtype`; `arrays.unpack_context` gives their context."""
    test_users: Int32s
    test_items: Int32s
    test_context: Floats
    test_negatives: Int32s
    """[test rows, negatives]: items without any row of the test row's user."""
    positives_indptr: Int64s
    """[users + 1]"""
    positives: Int32s
    """Each user's training items, sorted, each once: those of user u are
    positives[positives_indptr[u]:positives_indptr[u + 1]]."""
    buckets_indptr: Int64s
    """[users + 1]: the bounds of each user's buckets, see data/arrays.py."""
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
        """Mask [test rows] of the test pairs that do not occur in training."""
        return ~self.find_positives(self.test_users, self.test_items[:, None])[1][:, 0]

    def find_positives(self, users: Int32s, items: Int32s) -> tuple[Int64s, NDArray[np.bool_]]:
        """Find `items` [n, k] among the training items of their `users` [n].

        Returns the indices into `positives` [n, k], 0 where there is none, and a mask of the
        items found.
        """
        first, last = self.positives_indptr[users], self.positives_indptr[users + 1]
        first, held = first[:, None], (last - first)[:, None]
        before, found = find_positives(items, self.positives, first, held)
        return np.where(found, first + before, 0), found


def load_prepared(folder: Path) -> PreparedData:
    """Open a prepared folder.

    Raises DataError if it is missing or an array contradicts the manifest.
    """
    manifest = read_manifest(folder)
    try:
        in_order = _map_arrays(folder, manifest)
        _advise_huge_pages(in_order)
        _check_values(folder, in_order)
        return _map_arrays(folder, manifest)
    except DataError as error:
        raise DataError(f"{error}. {advise_preparing_again(folder, manifest)}") from None


def _map_arrays(folder: Path, manifest: Manifest) -> PreparedData:
    arrays: dict[str, NDArray[Any]] = {}
    for name, (code, shape) in array_types(manifest).items():
        path, kind = folder / f"{name}.npy", np.dtype(code)
        if name == "train_rows":
            numbers = len(manifest.context_columns) - manifest.small_columns
            kind = row_dtype(numbers, manifest.small_columns)
        try:
            found = arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, EOFError) as error:
            raise DataError(f"{path}: not a complete .npy array: {error}") from None
        if (found.dtype, found.shape) != (kind, shape):
            raise DataError(
                f"{path}: {MANIFEST_NAME} says {kind} {list(shape)}, the file holds "
                f"{found.dtype} {list(found.shape)}"
            )
    return PreparedData(manifest, **arrays)


def _advise_huge_pages(data: PreparedData) -> None:
    """Ask the kernel for huge pages for parts that its page cache does not hold yet.

    Only for arrays that are read in order: otherwise each page that is not cached would bring
    megabytes with it.
    """
    for array in vars(data).values():
        mapped = getattr(array, "base", None)
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                mapped.madvise(mmap.MADV_HUGEPAGE)


def _check_values(folder: Path, data: PreparedData) -> None:
    """Check all ids and bounds of the arrays. Raises DataError naming the file.

    Without the check torch would end a rank without naming the file.

    Takes a tenth of a second for millions of rows, and also brings the arrays into the page cache
    in order: training reads them at random.
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
    for name, ids, end in arrays:
        unsigned = ids.view(np.uint32)  # so that negative ids are too large
        if unsigned.size and unsigned.max() >= end:
            at = np.unravel_index(unsigned.argmax(), unsigned.shape)
            raise DataError(
                f"{folder / name}: expected ids from 0 to {end - 1:,}, came {ids[at]} in row "
                f"{at[0]:,}"
            )
    data.buckets.max(initial=0)  # only read: engine native checks them
    for name, bounds, end, least in (
        ("positives_indptr", data.positives_indptr, len(data.positives), 0),
        ("buckets_indptr", data.buckets_indptr, len(data.buckets), 1),
    ):
        if bounds[0] != 0 or bounds[-1] != end or (np.diff(bounds) < least).any():
            rise = "always rise" if least else "never fall"
            raise DataError(f"{folder / name}.npy: expected bounds from 0 to {end:,} that {rise}")
    everything = np.flatnonzero(np.diff(data.positives_indptr) >= items)
    if len(everything):
        raise DataError(
            f"{folder / 'positives_indptr'}.npy: user {everything[0]:,} has each of the "
            f"{items:,} items, so that no negative can be drawn"
        )


def score_counts(prepared: PreparedData) -> dict[str, float]:
    """HR@10 and NDCG@10 of ranking candidates by counts, `hr10` and `ndcg10`.

    Candidates are sorted by how often the user has the item in training, then by how often all
    users have it.

    A candidate whose counts equal the positive's is ranked before it: ties never help. Raises
    DataError if the data has no test rows.
    """
    manifest = prepared.manifest
    if not manifest.test_rows:
        raise DataError("no user has a held-out row, so that there is nothing to rank")
    popularity = np.zeros(manifest.items, dtype=np.int64)
    own_counts = np.zeros(manifest.train_pairs, dtype=np.int32)
    for part in _slices(manifest.train_rows, TRAIN_ROWS_AT_ONCE):
        users, items = prepared.train_users[part], prepared.train_items[part]
        popularity += np.bincount(items, minlength=manifest.items)
        places, counts = np.unique(
            prepared.find_positives(users, items[:, None])[0], return_counts=True
        )
        own_counts[places] += counts.astype(np.int32)
    ranks = np.empty(manifest.test_rows, dtype=np.int64)
    for part in _slices(manifest.test_rows, TEST_ROWS_AT_ONCE):
        candidates = np.column_stack([prepared.test_items[part], prepared.test_negatives[part]])
        places, found = prepared.find_positives(prepared.test_users[part], candidates)
        own = np.where(found, own_counts[places], 0).astype(np.int64)
        score = own * (manifest.train_rows + 1) + popularity[candidates]
        ranks[part] = (score[:, 1:] >= score[:, :1]).sum(axis=1)
    gains = np.where(ranks < TOP_K, 1 / np.log2(ranks + 2.0), 0.0)
    return {"hr10": float((ranks < TOP_K).mean()), "ndcg10": float(gains.mean())}


def _slices(length: int, at_once: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `at_once`, so that memory stays bounded."""
    for start in range(0, length, at_once):
        yield slice(start, min(start + at_once, length))
