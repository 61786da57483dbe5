"""Read interactions from CSV and Parquet files, a block of rows at a time.

Context columns of numbers are kept unscaled, those of text become one-hot. With a time column the
latest row of each user is held out, without one a random row.

CSV is read with Python's `csv`, row by row, so that an error names the line of its row: pandas
fills short rows and hides blank lines. pyarrow, 170 MB installed, is for Parquet only.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hpcncf.data.manifest import DataError, WrongRequest
from hpcncf.data.prepare import NamedBlock, PreparedFolder, Recipe, write_blocks

ROWS_AT_ONCE: Final = 1 << 10  # more do not fit into the cache: half as fast
PARQUET_ROWS: Final = 1 << 16
PARQUET_BUFFER: Final = 1 << 20
"""Bytes of each column that are read at once: whole column chunks may be larger than memory."""

Where = Callable[[int], str]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Columns:
    """The columns that the user named."""

    user: str
    item: str
    context: tuple[str, ...] = ()
    time: str | None = None

    def names(self) -> list[str]:
        """Names of all columns to read, each once."""
        times = [self.time] if self.time else []
        return list(dict.fromkeys([self.user, self.item, *self.context, *times]))


def prepare_table(
    folder: Path,
    source: Path,
    kind: Literal["csv", "parquet"],
    columns: Columns,
    seed: int = 1,
    test_negatives: int = 99,
    force: bool = False,
    report: Report = lambda _: None,
    threads: int = 1,
) -> PreparedFolder:
    """Prepare a CSV file with a header (.tsv: separated by tabs) or a Parquet file.

    `threads`: Arrow's, for a Parquet file; their number does not change the folder's content.
    """
    options = asdict(columns) | {"seed": seed, "test_negatives": test_negatives}
    options["context"] = list(columns.context)
    report(f"reading the checksum of {source}")
    recipe = Recipe(kind, describe_source([source]), options)

    blocks = (
        read_csv(source, columns, report)
        if kind == "csv"
        else read_parquet(source, columns, report, threads)
    )
    return write_blocks(folder, recipe, source.name, source, blocks, force)


def describe_source(files: Iterable[Path]) -> dict[str, str]:
    """Name and SHA-256 of one or several input files, as `name` and `sha256`."""
    digests = {}
    for path in files:
        try:
            with path.open("rb") as file:
                digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            absent = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
            kind = WrongRequest if absent else DataError
            raise kind(f"{path}: cannot be read: {error.strerror}") from None
    if len(digests) == 1:
        ((name, digest),) = digests.items()
        return {"name": name, "sha256": digest}
    joined = "".join(digests.values()).encode()
    return {"name": ", ".join(digests), "sha256": hashlib.sha256(joined).hexdigest()}


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place `FILE:LINE` and the text of each line that is not blank."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}:{number}: not UTF-8 text: {error.reason}") from None
                if line.strip():
                    yield f"{path}:{number}", line.rstrip("\r\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def read_csv_rows(
    file: Iterable[bytes], name: str, columns: list[str], delimiter: str
) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the line number and the named columns of each row that is not blank."""
    lines = iter(file)
    first = (line.decode("utf-8-sig") for line in islice(lines, 1))
    reader = csv.reader(chain(first, map(bytes.decode, lines)), delimiter=delimiter)
    try:
        header = next(reader, [])
        for column in columns:
            if (count := header.count(column)) != 1:
                why = f"{count} columns are called" if count else "no column"
                raise WrongRequest(
                    f"{name}: {why} {column!r}; its columns: {', '.join(header)[:200]}"
                )
        at = [header.index(column) for column in columns]
        pick = itemgetter(*at) if len(at) > 1 else lambda row: (row[at[0]],)
        begin = reader.line_num + 1
        for row in reader:
            if len(row) == len(header):
                yield begin, pick(row)
            elif row:
                raise DataError(f"{name}:{begin}: expected {len(header)} columns, came {len(row)}")
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: not readable as CSV: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{name}:{reader.line_num + 1}: not UTF-8 text: {error.reason}") from None


def read_csv(source: Path, columns: Columns, report: Report) -> Iterator[NamedBlock]:
    """Yield the named columns of a CSV file in blocks of rows.

    Raises DataError with the line and the column of the first value that cannot be used.
    """
    delimiter, names = "\t" if source.suffix == ".tsv" else ",", columns.names()
    numeric: set[str] | None = None
    count = 0
    try:
        size = max(1, source.stat().st_size)
        with source.open("rb") as file:
            rows = read_csv_rows(file, str(source), names, delimiter)
            while some := list(islice(rows, ROWS_AT_ONCE)):
                lines, values = zip(*some, strict=True)
                found = dict(zip(names, zip(*values, strict=True), strict=True))

                def where(at: int, lines: tuple[int, ...] = lines) -> str:
                    return f"{source}:{lines[at]}"

                if numeric is None:  # a column is numeric if its first value is
                    numeric = {name for name in names if is_number(found[name][0])}
                for name in (columns.user, columns.item):
                    for value in set(found[name]):
                        if not value.strip():
                            raise DataError(f"{where(found[name].index(value))}: {name}: is empty")
                yield NamedBlock(
                    list(found[columns.user]),
                    list(found[columns.item]),
                    {
                        name: _parse_numbers(name, found[name], where)
                        if name in numeric
                        else list(found[name])
                        for name in columns.context
                    },
                    _parse_numbers(columns.time, found[columns.time], where, or_dates=True)
                    if columns.time
                    else None,
                    where,
                )
                count += len(some)
                report(f"reading {source}: {file.tell() / size:.0%}, {count:,} rows")
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def parse_integer(text: str, where: str, what: str, least: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number < 2**63:
        raise DataError(
            f"{where}: {what}: expected a whole number of {least} or more, came {text!r}"
        )
    return number


def _parse_numbers(
    name: str, values: Sequence[str], where: Where, or_dates: bool = False
) -> NDArray[np.float64]:
    """Parse finite numbers; with `or_dates` also dates, as seconds since 1970."""
    try:
        numbers = np.fromiter(map(float, values), dtype=np.float64, count=len(values))
        if np.isfinite(numbers).all():
            return numbers
    except ValueError:
        pass

    def number(at: int, value: str) -> float:
        if is_number(value):
            return float(value)
        expected = "a number, as in the first row"
        if or_dates:
            expected = "a number or a date such as 2020-12-31T23:59"
            with suppress(ValueError):
                time = datetime.fromisoformat(value)
                return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        raise DataError(f"{where(at)}: {name}: expected {expected}, came {value!r}")

    return np.array([number(at, value) for at, value in enumerate(values)], dtype=np.float64)


def read_parquet(
    source: Path, columns: Columns, report: Report, threads: int = 1
) -> Iterator[NamedBlock]:
    """Yield the named columns of a Parquet file in blocks of rows.

    The file and its row groups may be larger than memory.

    `threads`: Arrow's, which decode the columns of a block in parallel. Raises DataError with the
    row and the column of the first value that cannot be used.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{source}: reading Parquet needs pyarrow: pip install pyarrow") from None
    if threads > 1:
        pyarrow.set_cpu_count(threads)
    names = columns.names()
    try:
        with parquet.ParquetFile(source, buffer_size=PARQUET_BUFFER, pre_buffer=False) as file:
            known = file.schema_arrow.names
            missing = [name for name in names if name not in known]
            if missing:
                raise WrongRequest(
                    f"{source}: no column {missing[0]!r}; its columns: {', '.join(known)}"
                )
            rows, length = 0, file.metadata.num_rows
            for batch in file.iter_batches(PARQUET_ROWS, columns=names, use_threads=threads > 1):
                yield _parquet_block(source, columns, batch, rows)
                rows += batch.num_rows
                report(f"reading {source}: {rows / length:.0%}, {rows:,} rows")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source}: cannot be read as Parquet: {error}") from None


def _parquet_block(source: Path, columns: Columns, batch: Any, before: int) -> NamedBlock:
    def where(at: int) -> str:
        return f"{source}: row {before + at + 1}"

    values = {name: _parquet_values(batch[name], name, where) for name in columns.names()}
    times = values[columns.time] if columns.time else None
    if times is not None and times.dtype.kind not in "ifM":
        raise DataError(f"{source}: {columns.time}: expected numbers or timestamps, came text")
    return NamedBlock(
        values[columns.user].tolist(),
        values[columns.item].tolist(),
        {
            name: values[name].astype(np.float64)
            if values[name].dtype.kind in "if"
            else values[name].astype(np.str_).tolist()
            for name in columns.context
        },
        times.view(np.int64) if times is not None and times.dtype.kind == "M" else times,
        where,
    )


def _parquet_values(column: Any, name: str, where: Where) -> NDArray[Any]:
    """Convert an Arrow column to a numpy array of int64, float, datetime64 or text.

    Raises DataError at the first null or NaN.
    """
    if column.null_count:
        raise DataError(f"{where(column.is_null().index(True).as_py())}: {name}: is empty")
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    kind = values.dtype.kind
    if kind == "f":
        not_finite = np.flatnonzero(~np.isfinite(values))
        if len(not_finite):
            at = int(not_finite[0])
            raise DataError(f"{where(at)}: {name}: expected a number, came {values[at]}")
        return values
    if kind == "M":
        return values
    return np.asarray(values.astype(np.int64 if kind in "biu" else np.str_))
