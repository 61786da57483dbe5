"""Reading a Parquet file: only the columns that are named, through pyarrow (optional).

Row group by row group, and of one as many rows at once as a block has: neither the file nor a
row group has to fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.manifest import DataError, WrongRequest
from hpcncf.ncf.data.spool import Block
from hpcncf.ncf.data.tables import Columns, Say

ROWS_AT_ONCE_PARQUET: Final = 1 << 16
BUFFER: Final = 1 << 20
"""Bytes of each column that are read at once: whole column chunks may be larger than memory."""


def read_parquet(source: Path, columns: Columns, say: Say, threads: int = 1) -> Iterator[Block]:
    """`threads`: of Arrow's, which decode the columns of a block at the same time.

    Raises DataError with the row and the column of the first value that cannot be used.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{source}: reading Parquet needs pyarrow: pip install pyarrow") from None
    if threads > 1:
        pyarrow.set_cpu_count(threads)
    try:
        with parquet.ParquetFile(source, buffer_size=BUFFER, pre_buffer=False) as file:
            _refuse_missing(source, columns.names(), file.schema_arrow.names)
            rows, length = 0, file.metadata.num_rows
            for batch in file.iter_batches(
                ROWS_AT_ONCE_PARQUET, columns=columns.names(), use_threads=threads > 1
            ):
                yield _block_parquet(source, columns, batch, rows)
                rows += batch.num_rows
                say(f"reading {source}: {rows / length:.0%}, {rows:,} rows")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source}: cannot be read as Parquet: {error}") from None


def _refuse_missing(source: Path, names: list[str], known: list[str]) -> None:
    missing = [name for name in names if name not in known]
    if missing:
        raise WrongRequest(f"{source}: no column {missing[0]!r}; its columns: {', '.join(known)}")


def _block_parquet(source: Path, columns: Columns, batch: Any, before: int) -> Block:
    def where(at: int) -> str:
        return f"{source}: row {before + at + 1}"

    values = {name: _values(batch[name], name, where) for name in columns.names()}
    return Block(
        values[columns.user].tolist(),
        values[columns.item].tolist(),
        {name: _context(values[name]) for name in columns.context},
        _times_parquet(source, columns.time, values[columns.time]) if columns.time else None,
        where,
    )


def _values(column: Any, name: str, where: Any) -> NDArray[Any]:
    """A column as int64, finite floats, datetime64 or text.

    Raises DataError at the first null or NaN.
    """
    if column.null_count:
        raise DataError(f"{where(column.is_null().index(True).as_py())}: {name}: is empty")
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    kind = values.dtype.kind
    if kind == "f":
        return _finite(values, name, where)
    if kind == "M":
        return values
    whole: NDArray[Any] = values.astype(np.int64 if kind in "biu" else np.str_)
    return whole


def _context(values: NDArray[Any]) -> NDArray[np.float64] | list[str]:
    if values.dtype.kind in "if":
        return values.astype(np.float64)
    texts: list[str] = values.astype(np.str_).tolist()
    return texts


def _times_parquet(source: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind not in "ifM":
        raise DataError(f"{source}: {name}: expected numbers or timestamps, came text")
    return values.view(np.int64) if values.dtype.kind == "M" else values


def _finite(values: NDArray[np.float64], name: str, where: Any) -> NDArray[np.float64]:
    broken = np.flatnonzero(~np.isfinite(values))
    if len(broken):
        at = int(broken[0])
        raise DataError(f"{where(at)}: {name}: expected a number, came {values[at]}")
    return values
