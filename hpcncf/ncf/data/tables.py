"""Interactions of a CSV or Parquet file, its columns named by the user.

A context column of numbers is kept as it is, not scaled; one of text becomes one-hot. With a time
column the latest row of each user is held out, without one a random row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data import text
from hpcncf.ncf.data.manifest import DataError
from hpcncf.ncf.data.prepared import Recipe, Written, write
from hpcncf.ncf.data.rows import Floats, Rows, Split, leave_one_out, numbered

MOST_VALUES: Final = 256
"""Of a one-hot column: more is likely an identifier or a number with a typing error."""


@dataclass(frozen=True)
class Columns:
    user: str
    item: str
    context: tuple[str, ...] = ()
    time: str | None = None

    def names(self) -> list[str]:
        """Each column that is read, once."""
        times = [self.time] if self.time else []
        return list(dict.fromkeys([self.user, self.item, *self.context, *times]))


@dataclass(frozen=True)
class Table:
    """The named columns; context is floats, or text where it is to become one-hot."""

    users: NDArray[Any]
    items: NDArray[Any]
    context: dict[str, NDArray[Any]]
    times: NDArray[Any] | None


def prepare(
    folder: Path,
    source: Path,
    kind: Literal["csv", "parquet"],
    columns: Columns,
    seed: int = 1,
    test_negatives: int = 99,
    force: bool = False,
) -> Written:
    """Prepare a file with a header (.tsv: separated by tabs, else commas) or a Parquet file."""
    options = asdict(columns) | {"seed": seed, "test_negatives": test_negatives}
    options["context"] = list(columns.context)
    recipe = Recipe(kind, text.source_of([source]), options)

    def build() -> Split:
        table = _reader(kind)(source, columns)
        if not len(table.users):
            raise DataError(f"{source}: has no rows")
        return leave_one_out(_rows(source, table), seed, test_negatives, table.times)

    return write(folder, recipe, source.name, build, force)


def _reader(kind: Literal["csv", "parquet"]) -> Callable[[Path, Columns], Table]:
    if kind == "csv":
        return read_csv
    from hpcncf.ncf.data.parquet import read_parquet

    return read_parquet


def _rows(source: Path, table: Table) -> Rows:
    blocks, names = [np.empty((len(table.users), 0), dtype=np.float32)], []
    for name, values in table.context.items():
        block, columns = _block(source, name, values)
        blocks.append(block)
        names += columns
    return numbered(table.users, table.items, np.concatenate(blocks, axis=1), names)


def _block(source: Path, name: str, values: NDArray[Any]) -> tuple[Floats, list[str]]:
    if values.dtype.kind == "f":
        too_large = np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)
        if len(too_large):
            raise DataError(
                f"{source}: row {too_large[0] + 1}: {name}: {values[too_large[0]]} is more than "
                "single precision holds: scale the column, or leave it out"
            )
        return values.astype(np.float32)[:, None], [name]
    distinct = len(np.unique(values))
    if distinct > MOST_VALUES:
        raise DataError(
            f"{source}: context column {name!r}: {distinct} different texts, at most "
            f"{MOST_VALUES} can become columns of their own; group them, or leave it out"
        )
    return text.one_hot(name, values)


def read_csv(source: Path, columns: Columns) -> Table:
    delimiter = "\t" if source.suffix == ".tsv" else ","
    names = columns.names()
    try:
        with source.open("rb") as file:
            places, rows = [], []
            for where, row in text.records(file, str(source), names, delimiter):
                places.append(where)
                rows.append(row)
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None
    values = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    found = {name: values.get(name, ()) for name in names}
    for name in (columns.user, columns.item):
        _refuse_blank(name, found[name], places)
    return Table(
        np.array(found[columns.user]),
        np.array(found[columns.item]),
        {name: _context(name, found[name], places) for name in columns.context},
        _times(columns.time, found[columns.time], places) if columns.time else None,
    )


def _refuse_blank(name: str, values: tuple[str, ...], places: list[str]) -> None:
    for value, where in zip(values, places, strict=True):
        if not value.strip():
            raise DataError(f"{where}: {name}: is empty")


def _context(name: str, values: tuple[str, ...], places: list[str]) -> NDArray[Any]:
    """Floats where the first value is a number: then all must be. Else text."""
    if not values or not text.is_number(values[0]):
        return np.array(values, dtype=np.str_)
    for value, where in zip(values, places, strict=True):
        if not text.is_number(value):
            raise DataError(
                f"{where}: {name}: expected a number, as in the first row, came {value!r}"
            )
    return np.array(values, dtype=np.float64)


def _times(name: str, values: tuple[str, ...], places: list[str]) -> NDArray[np.float64]:
    seconds = [_seconds(name, *pair) for pair in zip(values, places, strict=True)]
    return np.array(seconds, dtype=np.float64)


def _seconds(name: str, value: str, where: str) -> float:
    if text.is_number(value):
        return float(value)
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise DataError(
            f"{where}: {name}: expected a number or a date such as 2020-12-31T23:59, came {value!r}"
        ) from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
