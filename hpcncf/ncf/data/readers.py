"""Read interactions from CSV and Parquet files, a block of rows at a time.

Context columns of numbers are kept unscaled, those of text become one-hot. With a time column the
latest row of each user is held out, without one a random row.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import accumulate, chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.manifest import DataError, WrongRequest
from hpcncf.ncf.data.prepare import Block, PreparedFolder, Recipe, spool_rows, write_prepared
from hpcncf.ncf.data.split import Report, SplitCounts, leave_one_out

ROWS_AT_ONCE: Final = 1 << 10  # more do not fit into the cache: half as fast
PARQUET_ROWS: Final = 1 << 16
PARQUET_BUFFER: Final = 1 << 20
"""Bytes of each column that are read at once: whole column chunks may be larger than memory."""

Where = Callable[[int], str]


@dataclass(frozen=True)
class Columns:
    """The columns that the user named."""

    user: str
    item: str
    context: tuple[str, ...] = ()
    time: str | None = None

    def names(self) -> list[str]:
        """Each column that is read, once."""
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

    The file may be larger than memory, which holds only its names. `threads`: Arrow's, for a
    Parquet file; their number does not change the folder's content.
    """
    options = asdict(columns) | {"seed": seed, "test_negatives": test_negatives}
    options["context"] = list(columns.context)
    report(f"reading the checksum of {source}")
    recipe = Recipe(kind, describe_source([source]), options)

    def fill(into: Path) -> SplitCounts:
        blocks = (
            read_csv(source, columns, report)
            if kind == "csv"
            else read_parquet(source, columns, report, threads)
        )
        with spool_rows(into, source, blocks) as rows:
            return leave_one_out(into, rows, seed, test_negatives, rows.times, report)

    return write_prepared(folder, recipe, source.name, fill, force)


def describe_source(files: Iterable[Path]) -> dict[str, str]:
    """`name` and `sha256` of one input file, or of several together."""
    digests = {path.name: _sha256(path) for path in files}
    if len(digests) == 1:
        ((name, digest),) = digests.items()
        return {"name": name, "sha256": digest}
    joined = "".join(digests.values()).encode()
    return {"name": ", ".join(digests), "sha256": hashlib.sha256(joined).hexdigest()}


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise WrongRequest(f"{path}: cannot be read: {error.strerror}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that is not blank, without its end, after its place: `FILE:LINE`."""
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


@dataclass(frozen=True)
class CsvBlock:
    """Some rows of a CSV file, without blank lines."""

    name: str
    columns: list[tuple[str, ...]]
    """The requested columns, in the requested order."""
    lines: Sequence[int]
    """The line of the file at which each row begins."""

    def where(self, at: int) -> str:
        return f"{self.name}:{self.lines[at]}"


def read_csv_blocks(
    file: Iterable[bytes], name: str, columns: list[str], delimiter: str
) -> Iterator[CsvBlock]:
    """The named columns of a CSV file with a header, many rows at once."""
    lines = iter(file)
    first = (line.decode("utf-8-sig") for line in islice(lines, 1))
    reader = csv.reader(chain(first, map(bytes.decode, lines)), delimiter=delimiter)
    try:
        header = next(reader, [])
        at = [_column_index(column, header, name) for column in columns]
        while True:
            begin = reader.line_num + 1
            rows = list(islice(reader, ROWS_AT_ONCE))
            if not rows:
                return
            numbers = _line_numbers(rows, begin, reader.line_num)
            if block := _csv_block(name, rows, numbers, at, len(header)):
                yield block
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: not readable as CSV: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{name}:{reader.line_num + 1}: not UTF-8 text: {error.reason}") from None


def _column_index(column: str, header: list[str], name: str) -> int:
    if header.count(column) != 1:
        why = f"{header.count(column)} columns are called" if column in header else "no column"
        raise WrongRequest(f"{name}: {why} {column!r}; its columns: {', '.join(header)[:200]}")
    return header.index(column)


def _line_numbers(rows: list[list[str]], first: int, last: int) -> Sequence[int]:
    """A quoted field may contain line breaks; a blank line is a row without fields."""
    if last - first + 1 == len(rows):
        return range(first, last + 1)
    more = [sum(field.count("\n") for field in row) for row in rows]
    return [first + at + before for at, before in enumerate(accumulate(more, initial=0))][:-1]


def _csv_block(
    name: str, rows: list[list[str]], lines: Sequence[int], at: list[int], width: int
) -> CsvBlock | None:
    if set(map(len, rows)) != {width}:
        kept = [place for place, row in enumerate(rows) if row]
        for place in kept:
            if len(rows[place]) != width:
                raise DataError(
                    f"{name}:{lines[place]}: expected {width} columns, came {len(rows[place])}"
                )
        rows, lines = [rows[place] for place in kept], [lines[place] for place in kept]
    columns = list(zip(*map(itemgetter(*at, at[0]), rows), strict=True))[: len(at)]
    return CsvBlock(name, columns, lines) if rows else None


def read_csv_rows(
    file: Iterable[bytes], name: str, columns: list[str], delimiter: str
) -> Iterator[tuple[str, list[str]]]:
    """Row by row, each after the place at which it begins: `FILE:LINE`."""
    for block in read_csv_blocks(file, name, columns, delimiter):
        for at, row in enumerate(zip(*block.columns, strict=True)):
            yield block.where(at), list(row)


def read_csv(source: Path, columns: Columns, report: Report) -> Iterator[Block]:
    """Raises DataError with the line and the column of the first value that cannot be used."""
    delimiter, names = "\t" if source.suffix == ".tsv" else ",", columns.names()
    numeric: set[str] | None = None
    rows = 0
    try:
        size = max(1, source.stat().st_size)
        with source.open("rb") as file:
            for block in read_csv_blocks(file, str(source), names, delimiter):
                found = dict(zip(names, block.columns, strict=True))
                if numeric is None:  # a column is numeric if its first value is
                    numeric = {name for name in names if is_number(found[name][0])}
                for name in (columns.user, columns.item):
                    for value in set(found[name]):
                        if not value.strip():
                            at = found[name].index(value)
                            raise DataError(f"{block.where(at)}: {name}: is empty")
                yield Block(
                    list(found[columns.user]),
                    list(found[columns.item]),
                    {
                        name: _csv_numbers(name, found[name], block.where)
                        if name in numeric
                        else list(found[name])
                        for name in columns.context
                    },
                    _csv_times(columns.time, found[columns.time], block.where)
                    if columns.time
                    else None,
                    block.where,
                )
                rows += len(block.lines)
                report(f"reading {source}: {file.tell() / size:.0%}, {rows:,} rows")
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


def _finite_numbers(values: tuple[str, ...]) -> NDArray[np.float64] | None:
    """None if a value is not a number, or not finite."""
    try:
        numbers = np.fromiter(map(float, values), dtype=np.float64, count=len(values))
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _csv_numbers(name: str, values: tuple[str, ...], where: Where) -> NDArray[np.float64]:
    numbers = _finite_numbers(values)
    if numbers is None:
        at = next(at for at, value in enumerate(values) if not is_number(value))
        raise DataError(
            f"{where(at)}: {name}: expected a number, as in the first row, came {values[at]!r}"
        )
    return numbers


def _csv_times(name: str, values: tuple[str, ...], where: Where) -> NDArray[np.float64]:
    numbers = _finite_numbers(values)
    if numbers is not None:
        return numbers

    def seconds(at: int, value: str) -> float:
        if is_number(value):
            return float(value)
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            raise DataError(
                f"{where(at)}: {name}: expected a number or a date such as 2020-12-31T23:59, "
                f"came {value!r}"
            ) from None
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()

    return np.array([seconds(at, value) for at, value in enumerate(values)], dtype=np.float64)


def read_parquet(
    source: Path, columns: Columns, report: Report, threads: int = 1
) -> Iterator[Block]:
    """The named columns, by row group and in it by block, so that neither must fit into memory.

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


def _parquet_block(source: Path, columns: Columns, batch: Any, before: int) -> Block:
    def where(at: int) -> str:
        return f"{source}: row {before + at + 1}"

    values = {name: _parquet_values(batch[name], name, where) for name in columns.names()}
    times = values[columns.time] if columns.time else None
    if times is not None and times.dtype.kind not in "ifM":
        raise DataError(f"{source}: {columns.time}: expected numbers or timestamps, came text")
    return Block(
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
    """A column as int64, finite floats, datetime64 or text.

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
