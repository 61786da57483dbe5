"""Open a prepared folder: a manifest and memory-mapped arrays; score it by counts alone."""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpcncf.ncf.data.arrays import (
    SLOTS,
    Floats,
    Int32s,
    Int64s,
    Sliced,
    is_positive,
    row_dtype,
    slices,
    user_counts,
)
from hpcncf.ncf.data.manifest import (
    MANIFEST_NAME,
    TOP_K,
    DataError,
    Manifest,
    advise_preparing_again,
    read_manifest,
)


@dataclass(frozen=True)
class Prepared:
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
        """[test rows]: the pair does not occur in training."""
        seen = np.empty(len(self.test_users), dtype=np.bool_)
        for part in slices(len(seen)):
            users, items = self.test_users[part], self.test_items[part]
            seen[part] = is_positive(self.positives, self.positives_indptr, users, items)
        return ~seen


def load_prepared(folder: Path) -> Prepared:
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


def _map_arrays(folder: Path, manifest: Manifest) -> Prepared:
    train, test, columns = manifest.train_rows, manifest.test_rows, len(manifest.context_columns)

    def array(name: str, kind: DTypeLike, *shape: int) -> NDArray[Any]:
        path = folder / f"{name}.npy"
        try:
            found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, EOFError) as error:
            raise DataError(f"{path}: not a complete .npy array: {error}") from None
        if (found.dtype, found.shape) != (np.dtype(kind), shape):
            raise DataError(
                f"{path}: {MANIFEST_NAME} says {np.dtype(kind)} {list(shape)}, the file holds "
                f"{found.dtype} {list(found.shape)}"
            )
        return found

    row = row_dtype(columns - manifest.small_columns, manifest.small_columns)
    return Prepared(
        manifest,
        train_rows=array("train_rows", row, train),
        test_users=array("test_users", np.int32, test),
        test_items=array("test_items", np.int32, test),
        test_context=array("test_context", np.float32, test, columns),
        test_negatives=array("test_negatives", np.int32, test, manifest.test_negatives),
        positives_indptr=array("positives_indptr", np.int64, manifest.users + 1),
        positives=array("positives", np.int32, manifest.train_pairs),
        buckets_indptr=array("buckets_indptr", np.int64, manifest.users + 1),
        buckets=array("buckets", np.uint16, manifest.buckets, SLOTS),
    )


def _advise_huge_pages(data: Prepared) -> None:
    """Ask the kernel for huge pages for parts that its page cache does not hold yet.

    Only for arrays that are read in order: otherwise each page that is not cached would bring
    megabytes with it.
    """
    for array in vars(data).values():
        mapped = getattr(array, "base", None)
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                mapped.madvise(mmap.MADV_HUGEPAGE)


def _check_values(folder: Path, data: Prepared) -> None:
    """Check all ids and bounds, since torch would end a rank without naming the file.

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
    for part in slices(max(len(ids) for _, ids, _ in arrays)):
        for name, ids, end in arrays:
            some = ids[part].view(np.uint32)  # unsigned, so that negative ids are too large
            if some.size and some.max() >= end:
                at = np.unravel_index(some.argmax(), some.shape)
                raise DataError(
                    f"{folder / name}: expected ids from 0 to {end - 1:,}, came {ids[part][at]} in "
                    f"row {part.start + at[0]:,}"
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


class ContextLayout:
    """The order of context columns in a prepared folder.

    Columns of any numbers come first, then those of whole numbers from 0 to 255, such as the zeros
    and ones of one-hot columns; both in the order of their source.
    """

    def __init__(self, names: list[str], *contexts: Sliced) -> None:
        """`contexts` [rows, columns] are read in one sweep."""
        fits = np.ones(len(names), dtype=np.bool_)
        for part in (context[span] for context in contexts for span in slices(len(context))):
            fits &= fits_a_byte(part)
            if not fits.any():
                break
        self._order = np.argsort(fits, kind="stable")
        self.names = [names[column] for column in self._order]
        self.small = int(fits.sum())

    def ordered(self, context: Floats) -> Floats:
        """[rows, columns] of the source, with its columns reordered."""
        return context[:, self._order]


def fits_a_byte(context: Floats) -> NDArray[np.bool_]:
    """[columns]: whether each value has the same bits after a round trip through a byte.

    -0 does not.
    """
    with np.errstate(invalid="ignore"):  # values outside of 0 to 255 become any byte
        back = context.astype(np.uint8).astype(np.float32)
    same = context.view(np.uint32) == back.view(np.uint32)
    fits: NDArray[np.bool_] = np.logical_and.reduce(same)
    return fits


TEST_ROWS_AT_ONCE: Final = 1 << 14
TRAIN_ROWS_AT_ONCE: Final = 1 << 22


def score_counts(prepared: Prepared) -> dict[str, float]:
    """`hr10` and `ndcg10` of ranking by the user's own training count of the item, then by the
    item's training count over all users.

    A candidate whose counts equal the positive's is ranked before it: ties never help. Raises
    DataError if the data has no test rows.
    """
    if not prepared.manifest.test_rows:
        raise DataError("no user has a held-out row, so that there is nothing to rank")
    ranks = rank_by_counts(prepared)
    gains = np.where(ranks < TOP_K, 1 / np.log2(ranks + 2.0), 0.0)
    return {"hr10": float((ranks < TOP_K).mean()), "ndcg10": float(gains.mean())}


def rank_by_counts(prepared: Prepared, train_rows: int = TRAIN_ROWS_AT_ONCE) -> Int64s:
    """[test rows]: how many of the negatives are ranked before the positive.

    Works on ranges of users with about `train_rows` training rows each, so that memory does not
    grow with the data.
    """
    popularity = user_counts(prepared.train_items, prepared.manifest.items)
    counts = user_counts(prepared.train_users, prepared.manifest.users)
    before = np.zeros(prepared.manifest.test_rows, dtype=np.int64)
    range_of = (np.cumsum(counts) - counts) // train_rows
    for number in np.unique(range_of):
        first, end = np.searchsorted(range_of, (number, number + 1))
        _rank_users(prepared, int(first), int(end), popularity, before)
    return before


def _rank_users(
    prepared: Prepared, first: int, end: int, popularity: Int64s, before: Int64s
) -> None:
    """Fill in the ranks of the test rows whose users are from `first` to `end`."""
    item_count = prepared.manifest.items
    found = [np.empty(0, dtype=np.int64)]
    for part in slices(prepared.manifest.train_rows):
        users = prepared.train_users[part]
        mine = np.flatnonzero((users >= first) & (users < end))
        items = prepared.train_items[part][mine]
        found.append(users[mine].astype(np.int64) * item_count + items)
    pairs, counts = np.unique(np.concatenate(found), return_counts=True)
    pairs, counts = np.append(pairs, np.iinfo(np.int64).max), np.append(counts, 0)
    tested = np.flatnonzero((prepared.test_users >= first) & (prepared.test_users < end))
    for part in slices(len(tested), TEST_ROWS_AT_ONCE):
        rows = tested[part]
        candidates = np.column_stack([prepared.test_items[rows], prepared.test_negatives[rows]])
        wanted = prepared.test_users[rows].astype(np.int64)[:, None] * item_count + candidates
        at = np.searchsorted(pairs, wanted)
        own = np.where(pairs[at] == wanted, counts[at], 0)
        score = own * (prepared.manifest.train_rows + 1) + popularity[candidates]
        before[rows] = (score[:, 1:] >= score[:, :1]).sum(axis=1)
