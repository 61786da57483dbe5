"""Arrays in files, written block by block and read in slices; interactions, rows, buckets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from hpcncf.ncf.sampling import find_positives, storage_order

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]

SLICE_ROWS: Final = 1 << 18
"""Rows of a slice: tens of MB with two dozen columns."""
HUGE_PAGE: Final = 1 << 21
"""Bytes that one entry of the page table can map. A kernel with large folios for the file system
(XFS, ext4 since Linux 6.16) caches a write of this size in one piece."""
PART_BYTES: Final = 1 << 26
"""Training rows that are ordered in memory at once. Each part is an open file."""


class Sliced(Protocol):
    """Data that is read in slices: an array in memory or a column in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> NDArray[Any]: ...


def slices(length: int, at_once: int = SLICE_ROWS) -> Iterator[slice]:
    for start in range(0, length, at_once):
        yield slice(start, min(start + at_once, length))


class ColumnFile:
    """An .npy file that grows at its end and may be read meanwhile. Must be closed."""

    def __init__(
        self,
        path: Path,
        kind: DTypeLike,
        row: tuple[int, ...] = (),
        piece_bytes: int | None = None,
    ) -> None:
        """`row` is the shape of one row.

        The file is written in pieces of `piece_bytes`, except at its end and when it is read
        meanwhile; with None, as rows arrive.
        """
        self.path, self.kind, self.row = path, np.dtype(kind), row
        self._length = 0
        self._piece_bytes = piece_bytes
        self._file = path.open("wb", buffering=piece_bytes or -1)
        self._header_bytes = self._write_header()

    def append(self, rows: Any) -> None:
        block = np.ascontiguousarray(rows, dtype=self.kind)
        data = block.reshape(-1).view(np.uint8).data
        if self._piece_bytes:
            room = self._piece_bytes - self._file.tell() % self._piece_bytes
            while len(data) >= room:
                self._file.write(data[:room])
                self._file.flush()
                data, room = data[room:], self._piece_bytes
        self._file.write(data)
        self._length += len(block)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, span: slice, /) -> NDArray[Any]:
        start, stop, _ = span.indices(self._length)
        if not self._file.closed:
            self._file.flush()
        count, each = max(0, stop - start), math.prod(self.row)
        offset = self._header_bytes + start * each * self.kind.itemsize
        found = np.fromfile(self.path, self.kind, count * each, offset=offset)
        return found.reshape(count, *self.row)

    def close(self) -> None:
        if self._file.closed:
            return
        with self._file:
            self._file.seek(0)
            assert self._write_header() == self._header_bytes

    def _write_header(self) -> int:
        """Returns the place of the first row: numpy leaves room for a first axis of any length."""
        header = {
            "descr": npy.dtype_to_descr(self.kind),
            "fortran_order": False,
            "shape": (self._length, *self.row),
        }
        npy.write_array_header_1_0(self._file, header)
        return self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def append_by_part(
    rows: NDArray[Any], parts: NDArray[np.int64], files: Sequence[ColumnFile]
) -> None:
    """Append each row to the file of its part, in order."""
    order = np.argsort(parts, kind="stable")
    ends = np.cumsum(np.bincount(parts, minlength=len(files)))[:-1]
    for file, some in zip(files, np.split(rows[order], ends), strict=True):
        file.append(some)


class RowPlacer:
    """Writes training rows in the order of `sampling.storage_order`, a part at a time."""

    def __init__(self, folder: Path, to: ColumnFile, rows: int, files: ExitStack) -> None:
        """`rows`: their number. Until `finish`, `folder` must have room for them."""
        self._to, self._rows, self._came = to, rows, 0
        self._kind = np.dtype([("place", np.int64), ("row", to.kind)])
        self._each = max(1, PART_BYTES // self._kind.itemsize)
        self._parts = [
            files.enter_context(ColumnFile(folder / f".rows-{number}", self._kind))
            for number in range(-(-rows // self._each))
        ]

    def append(self, rows: NDArray[Any]) -> None:
        """Take the next rows in the order of their source."""
        moved = np.empty(len(rows), self._kind)
        moved["place"] = storage_order(self._came, self._came + len(rows), self._rows)
        moved["row"] = rows
        append_by_part(moved, moved["place"] // self._each, self._parts)
        self._came += len(rows)

    def finish(self) -> None:
        for part in self._parts:
            moved = part[:]
            part.close()
            part.path.unlink()
            rows = np.empty(len(moved), self._to.kind)
            rows[moved["place"] % self._each] = moved["row"]
            self._to.append(rows)


def row_dtype(numbers: int, small: int) -> np.dtype[Any]:
    """A training row in its file: user, item, `numbers` float and `small` byte context columns.

    A row lies together, since rows, or blocks of them, are read at random and each place costs a
    page-table walk.
    """
    context = ("numbers", np.float32, (numbers,)), ("small", np.uint8, (small,))
    return np.dtype([("user", np.int32), ("item", np.int32), *context])


def pack_rows(
    users: NDArray[Any], items: NDArray[Any], context: NDArray[Any], small: int
) -> NDArray[Any]:
    """`users` [n], `items` [n] and `context` [n, columns] as training rows [n].

    The last `small` columns hold only whole numbers from 0 to 255.
    """
    numbers = context.shape[1] - small
    rows = np.empty(len(users), row_dtype(numbers, small))
    rows["user"], rows["item"] = users, items
    rows["numbers"], rows["small"] = context[:, :numbers], context[:, numbers:]
    return rows


def unpack_context(rows: NDArray[Any]) -> Floats:
    """[n, columns]: the context of packed rows [n], or [columns] of one row."""
    return np.concatenate([rows["numbers"], rows["small"]], axis=-1, dtype=np.float32)


class Interactions(Protocol):
    """Rows in the order of their source, in memory or in files; ids of users and items from 0."""

    @property
    def users(self) -> Sliced: ...
    @property
    def items(self) -> Sliced: ...
    @property
    def context(self) -> Sliced:
        """[rows, columns]"""

    @property
    def context_columns(self) -> list[str]: ...
    @property
    def user_names(self) -> Any:
        """The source's name of each user, for messages; as many as there are users."""

    @property
    def item_count(self) -> int: ...


@dataclass(frozen=True)
class Rows:
    """Interactions in memory."""

    users: Int32s
    items: Int32s
    context: Floats
    context_columns: list[str]
    user_names: NDArray[Any]
    item_count: int

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class Split:
    """The rows of a prepared folder, in memory."""

    train: Rows
    test: Rows
    test_negatives: Int32s
    """[test rows, negatives]"""


def number_rows(
    users: NDArray[Any], items: NDArray[Any], context: Floats, context_columns: list[str]
) -> Rows:
    """Rows whose users and items are numbered from 0 in the order of their sorted names."""
    user_names, user_numbers = np.unique(users, return_inverse=True)
    item_names, item_numbers = np.unique(items, return_inverse=True)
    return Rows(
        user_numbers.astype(np.int32),
        item_numbers.astype(np.int32),
        context,
        context_columns,
        user_names,
        len(item_names),
    )


def user_counts(users: Sliced, user_count: int) -> Int64s:
    """[users]: each user's number of rows."""
    counts = np.zeros(user_count, dtype=np.int64)
    for part in slices(len(users)):
        counts += np.bincount(users[part], minlength=user_count)
    return counts


def drop_repeats(values: Int64s) -> Int64s:
    """Sorted values, each once. np.unique would build a hash table several times as large."""
    first = np.ones(len(values), dtype=np.bool_)
    first[1:] = values[1:] != values[:-1]
    return values[first]


def items_by_user(rows: Rows) -> tuple[Int64s, Int32s]:
    """`indptr` [users + 1] and the items of each user, sorted, each once."""
    user_count, item_count = len(rows.user_names), rows.item_count
    pairs = drop_repeats(np.sort(rows.users.astype(np.int64) * item_count + rows.items))
    indptr = np.searchsorted(pairs, np.arange(user_count + 1, dtype=np.int64) * item_count)
    return indptr.astype(np.int64), (pairs % item_count).astype(np.int32)


def is_positive(
    positives: Int32s, indptr: Int64s, users: Int32s, items: Int32s
) -> NDArray[np.bool_]:
    """[n]: whether each item is among its user's, positives[indptr[user] : indptr[user + 1]]."""
    first = indptr[users]
    return find_positives(items, positives, first, indptr[users + 1] - first)[1]


# Each user's positives lie in buckets of one cache line, which answer whether an item is one.
# A user has as many buckets as needed for none to overflow. An item's bucket follows from
# multiplication by 2^32 over the golden ratio (Knuth 1973, "The art of computer programming" 3,
# 6.4): neighbouring items lie far apart, and a search reads one line, however many items the user
# has. (Items at strides of a Fibonacci number may share buckets: no list takes more than a bucket
# for every 15 items that exist.) A bucket holds the low 16 bits of its items, and 0 in unused
# slots. An item that is not found is therefore no positive; one that is found nearly always is, and
# is then looked up in the sorted list.

SLOTS: Final = 32
_GOLDEN: Final = np.uint32(0x9E3779B1)
_TYPICAL_LOAD: Final = 24  # few buckets with this many items overflow


def build_buckets(indptr: Int64s, positives: Int32s) -> tuple[Int64s, NDArray[np.uint16]]:
    """Bounds [users + 1] of each user's buckets, one or more, and the buckets [n, SLOTS].

    User u's positives are positives[indptr[u]:indptr[u + 1]], each once.
    """
    held = np.diff(indptr)
    owners = np.repeat(np.arange(len(held)), held)
    bounds = np.concatenate([[0], np.cumsum(_bucket_counts(held, owners, positives))])
    at = bounds[owners] + bucket_of(positives, np.diff(bounds)[owners])
    order = np.argsort(at, kind="stable")
    at = at[order]
    table = np.zeros((bounds[-1], SLOTS), dtype=np.uint16)
    table[at, np.arange(len(at)) - np.searchsorted(at, at)] = positives[order].astype(np.uint16)
    return bounds, table


def bucket_of(items: Int32s | Int64s, counts: Int64s) -> Int64s:
    """The bucket of each item, of `counts` buckets."""
    spread = items.astype(np.uint32) * _GOLDEN  # modulo 2^32
    return (spread.astype(np.uint64) * counts.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def possible_positives(
    bounds: Int64s, table: NDArray[np.uint16], users: Int64s, items: Int64s
) -> Int64s:
    """Flat indices of `items` [n, k] that may be positives of their users [n], with repeats."""
    first = bounds[users]
    at = first[:, None] + bucket_of(items, (bounds[users + 1] - first)[:, None])
    same = table.take(at.reshape(-1), axis=0) == items.astype(np.uint16).reshape(-1, 1)
    found: Int64s = np.flatnonzero(same) // SLOTS
    return found


def _bucket_counts(held: Int64s, owners: Int64s, positives: Int32s) -> Int64s:
    """Each user's number of buckets, raised step by step until none overflows."""
    counts = np.where(held <= SLOTS, 1, -(-held // _TYPICAL_LOAD))
    unsure = held > SLOTS
    while unsure.any():
        mine = unsure[owners]
        owners, positives = owners[mine], positives[mine]
        bounds = np.concatenate([[0], np.cumsum(np.where(unsure, counts, 0))])
        at = bounds[owners] + bucket_of(positives, counts[owners])
        overflowing = np.flatnonzero(np.bincount(at) > SLOTS)
        unsure = np.zeros_like(unsure)
        unsure[np.searchsorted(bounds, overflowing, side="right") - 1] = True
        counts[unsure] += 1 + counts[unsure] // 8
    return counts
