"""Reading a Parquet file: only the columns that are named, through pyarrow (optional)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.manifest import DataError, WrongRequest
from hpcncf.ncf.data.tables import Columns, Table


def read_parquet(source: Path, columns: Columns) -> Table:
    table = _table(source, columns.names())
    values = {name: _values(source, name, table) for name in columns.names()}
    return Table(
        values[columns.user],
        values[columns.item],
        {name: _context(values[name]) for name in columns.context},
        _times(source, columns.time, values[columns.time]) if columns.time else None,
    )


def _table(source: Path, names: list[str]) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{source}: reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        with parquet.ParquetFile(source) as file:
            known = file.schema_arrow.names
            missing = [name for name in names if name not in known]
            if missing:
                raise WrongRequest(
                    f"{source}: no column {missing[0]!r}; its columns: {', '.join(known)}"
                )
            return file.read(columns=names)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source}: cannot be read as Parquet: {error}") from None


def _values(source: Path, name: str, table: Any) -> NDArray[Any]:
    """A column as int64, finite floats, datetime64 or text.

    Raises DataError at the first null or NaN.
    """
    column = table[name]
    if column.null_count:
        row = column.is_null().index(True).as_py() + 1
        raise DataError(f"{source}: row {row}: {name}: is empty")
    values: NDArray[Any] = column.to_numpy()
    kind = values.dtype.kind
    if kind == "f":
        return _finite(source, name, values)
    if kind == "M":
        return values
    whole: NDArray[Any] = values.astype(np.int64 if kind in "biu" else np.str_)
    return whole


def _context(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.float64 if values.dtype.kind in "if" else np.str_)


def _times(source: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind not in "ifM":
        raise DataError(f"{source}: {name}: expected numbers or timestamps, came text")
    return values


def _finite(source: Path, name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    broken = np.flatnonzero(~np.isfinite(values))
    if len(broken):
        raise DataError(
            f"{source}: row {broken[0] + 1}: {name}: expected a number, came {values[broken[0]]}"
        )
    return values
