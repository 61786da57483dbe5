"""Reading a CSV file, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data import text
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.spool import Block
from hpcncf.ncf.data.tables import Columns, Say

Where = Callable[[int], str]
Texts = tuple[str, ...]


def read_csv(source: Path, columns: Columns, say: Say) -> Iterator[Block]:
    """Raises DataError with the line and the column of the first value that cannot be used."""
    delimiter, names = "\t" if source.suffix == ".tsv" else ",", columns.names()
    numeric: set[str] | None = None
    rows = 0
    try:
        size = max(1, source.stat().st_size)
        with source.open("rb") as file:
            for block in text.blocks(file, str(source), names, delimiter):
                found = dict(zip(names, block.columns, strict=True))
                if numeric is None:
                    numeric = {name for name in names if text.is_number(found[name][0])}
                yield _block_csv_file(columns, found, numeric, block.where)
                rows += len(block.lines)
                say(f"reading {source}: {file.tell() / size:.0%}, {rows:,} rows")
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None


def _block_csv_file(columns: Columns, found: dict[str, Texts], numeric: set[str], where: Where) -> Block:
    for name in (columns.user, columns.item):
        _refuse_blank(name, found[name], where)
    context = {
        name: _figures(name, found[name], where) if name in numeric else list(found[name])
        for name in columns.context
    }
    times = _times(columns.time, found[columns.time], where) if columns.time else None
    return Block(list(found[columns.user]), list(found[columns.item]), context, times, where)


def _refuse_blank(name: str, values: Texts, where: Where) -> None:
    for value in set(values):
        if not value.strip():
            raise DataError(f"{where(values.index(value))}: {name}: is empty")


def _numbers(values: Texts) -> NDArray[np.float64] | None:
    """None where a value is no number, or not finite."""
    try:
        numbers = np.fromiter(map(float, values), dtype=np.float64, count=len(values))
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _figures(name: str, values: Texts, where: Where) -> NDArray[np.float64]:
    """The column's first value is a number: then all must be."""
    numbers = _numbers(values)
    if numbers is None:
        at = next(at for at, value in enumerate(values) if not text.is_number(value))
        raise DataError(
            f"{where(at)}: {name}: expected a number, as in the first row, came {values[at]!r}"
        )
    return numbers


def _times(name: str, values: Texts, where: Where) -> NDArray[np.float64]:
    numbers = _numbers(values)
    if numbers is not None:
        return numbers
    seconds = [_seconds(name, value, where, at) for at, value in enumerate(values)]
    return np.array(seconds, dtype=np.float64)


def _seconds(name: str, value: str, where: Where, at: int) -> float:
    if text.is_number(value):
        return float(value)
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise DataError(
            f"{where(at)}: {name}: expected a number or a date such as 2020-12-31T23:59, "
            f"came {value!r}"
        ) from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
