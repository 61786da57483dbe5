"""Arrays that lie in files: written block by block, read in slices, never whole in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

AT_ONCE: Final = 1 << 18
"""Rows of a slice: tens of MB with two dozen columns."""

HUGE_PAGE: Final = 1 << 21
"""Bytes that one entry of the page table can lead to. A kernel with large folios for the file
system (XFS, ext4 since Linux 6.16) caches what was written in one such piece in one."""


class Sliced(Protocol):
    """What is read in slices: an array in memory or a column in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> NDArray[Any]: ...


def slices(length: int, at_once: int = AT_ONCE) -> Iterator[slice]:
    for start in range(0, length, at_once):
        yield slice(start, min(start + at_once, length))


class Column:
    """An .npy file that grows at its end and may be read meanwhile. To be closed."""

    def __init__(
        self,
        path: Path,
        kind: DTypeLike,
        row: tuple[int, ...] = (),
        piece_bytes: int | None = None,
    ) -> None:
        """`row` is the shape of one row. The file is written in pieces of so many bytes, but for
        its end and where it is read meanwhile; None: as rows come."""
        self.path, self.kind, self.row = path, np.dtype(kind), row
        self._length = 0
        self._piece_bytes = piece_bytes
        self._file = path.open("wb", buffering=piece_bytes or -1)
        self._header_bytes = self._write_header()

    def append(self, rows: Any) -> None:
        block = np.ascontiguousarray(rows, dtype=self.kind)
        data = block.reshape(-1).view(np.uint8).data
        if self._piece_bytes:
            data = self._write_pieces(data, self._piece_bytes)
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

    def _write_pieces(self, data: memoryview, each: int) -> memoryview:
        """Returns what fills none."""
        room = each - self._file.tell() % each
        while len(data) >= room:
            self._file.write(data[:room])
            self._file.flush()
            data, room = data[room:], each
        return data

    def _write_header(self) -> int:
        """Returns where rows begin: numpy leaves room for a first axis of any length."""
        told = {
            "descr": npy.dtype_to_descr(self.kind),
            "fortran_order": False,
            "shape": (self._length, *self.row),
        }
        npy.write_array_header_1_0(self._file, told)
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


def spread(rows: NDArray[Any], parts: NDArray[np.int64], files: Sequence[Column]) -> None:
    """Append each row to the file of its part; they stay in their order there."""
    order = np.argsort(parts, kind="stable")
    ends = np.cumsum(np.bincount(parts, minlength=len(files)))[:-1]
    for file, some in zip(files, np.split(rows[order], ends), strict=True):
        file.append(some)
