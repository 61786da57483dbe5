"""Read interactions from CSV and Parquet files into memory.

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

from hpcncf.data.arrays import Floats, Interactions
from hpcncf.data.manifest import DataError, WrongRequest
from hpcncf.data.prepare import (
    CodedColumn,
    Numbering,
    PreparedFolder,
    Recipe,
    build_rows,
    check_few_texts,
    check_memory,
    estimate_rows,
    to_single_precision,
    write_interactions,
)

ROWS_AT_ONCE: Final = 1 << 10  # more do not fit into the cache: half as fast

Where = Callable[[int], str]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Columns:
    """Names of a file's columns for users, items, context and times, as the user gave them."""

    user: str
    item: str
    context: tuple[str, ...] = ()
    time: str | None = None

    def names(self) -> list[str]:
        """List the names of all columns to read, each once."""
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
    available_bytes: int | None = None,
) -> PreparedFolder:
    """Prepare a CSV file with a header (.tsv: separated by tabs) or a Parquet file.

    `threads`: Arrow's, for a Parquet file; their number does not change the folder's content.
    `available_bytes`: memory that the rows must fit in; None leaves that unchecked.
    """
    options = asdict(columns) | {"seed": seed, "test_negatives": test_negatives}
    options["context"] = list(columns.context)
    report(f"reading the checksum of {source}")
    recipe = Recipe(kind, describe_source([source]), options)

    def read() -> Interactions:
        if kind == "csv":
            return read_csv(source, columns, report, available_bytes)
        return read_parquet(source, columns, report, threads, available_bytes)

    return write_interactions(folder, recipe, source.name, read, force)


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


def read_csv(
    source: Path, columns: Columns, report: Report, available_bytes: int | None = None
) -> Interactions:
    """Read the named columns of a CSV file.

    Raises DataError with the line and the column of the first value that cannot be used.
    """
    delimiter, names = "\t" if source.suffix == ".tsv" else ",", columns.names()
    users, items, times = Numbering(), Numbering(), list[NDArray[np.float64]]()
    context = dict[str, Numbering | list[Floats]]()
    count = 0
    try:
        size = source.stat().st_size
        check_memory(source, estimate_rows(source), len(columns.context), available_bytes, "about ")
        with source.open("rb") as file:
            rows = read_csv_rows(file, str(source), names, delimiter)
            while some := list(islice(rows, ROWS_AT_ONCE)):
                lines, values = zip(*some, strict=True)
                found = dict(zip(names, zip(*values, strict=True), strict=True))

                def where(at: int, lines: tuple[int, ...] = lines) -> str:
                    return f"{source}:{lines[at]}"

                if not count:  # a column is numeric if its first value is
                    context = {
                        name: [] if is_number(found[name][0]) else Numbering()
                        for name in columns.context
                    }
                for name, numbering in ((columns.user, users), (columns.item, items)):
                    for value in set(found[name]):
                        if not value.strip():
                            raise DataError(f"{where(found[name].index(value))}: {name}: is empty")
                    numbering.append(found[name])
                for name, column in context.items():
                    if isinstance(column, Numbering):
                        check_few_texts(name, column.append(found[name]), where)
                    else:
                        numbers = _parse_numbers(name, found[name], where)
                        column.append(to_single_precision(name, numbers, where))
                if columns.time:
                    parsed = _parse_numbers(columns.time, found[columns.time], where, or_dates=True)
                    times.append(parsed)
                count += len(some)
                report(f"reading {source}: {file.tell() / size:.0%}, {count:,} rows")
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None
    if not count:
        raise DataError(f"{source}: has no rows")
    whole = {
        name: column.column() if isinstance(column, Numbering) else np.concatenate(column)
        for name, column in context.items()
    }
    table = build_rows(source, users.column(), items.column(), whole, available_bytes)
    return Interactions(table, np.concatenate(times) if times else None)


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
    source: Path,
    columns: Columns,
    report: Report,
    threads: int = 1,
    available_bytes: int | None = None,
) -> Interactions:
    """Read the named columns of a Parquet file, one after another.

    `threads`: Arrow's, which decode row groups in parallel. Raises DataError with the row and the
    column of the first value that cannot be used.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{source}: reading Parquet needs pyarrow: pip install pyarrow") from None
    if threads > 1:
        pyarrow.set_cpu_count(threads)

    def where(at: int) -> str:
        return f"{source}: row {at + 1}"

    try:
        with parquet.ParquetFile(source) as file:
            known = file.schema_arrow.names
            missing = [name for name in columns.names() if name not in known]
            if missing:
                raise WrongRequest(
                    f"{source}: no column {missing[0]!r}; its columns: {', '.join(known)}"
                )
            rows = file.metadata.num_rows
            if not rows:
                raise DataError(f"{source}: has no rows")
            check_memory(source, rows, len(columns.context), available_bytes)

            def read(name: str) -> Any:
                report(f"reading {source}: column {name}")
                column = file.read(columns=[name], use_threads=threads > 1).column(name)
                if column.null_count:
                    empty = column.is_null().index(True).as_py()
                    raise DataError(f"{where(empty)}: {name}: is empty")
                return column

            users, items = (
                _number_parquet_names(read(name), name, where)
                for name in (columns.user, columns.item)
            )
            context: dict[str, CodedColumn | Floats] = {
                name: _parquet_context(read(name), name, where) for name in columns.context
            }
            times = None
            if columns.time:
                times = _parquet_times(read(columns.time), columns.time, source, where)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source}: cannot be read as Parquet: {error}") from None
    return Interactions(build_rows(source, users, items, context, available_bytes), times)


def _number_parquet_names(column: Any, name: str, where: Where) -> CodedColumn:
    numbers = _parquet_numbers(column, name, where)
    if numbers is None:
        return CodedColumn.from_codes(*_parquet_codes(column))
    return CodedColumn.from_numbers(numbers)


def _parquet_context(column: Any, name: str, where: Where) -> CodedColumn | Floats:
    numbers = _parquet_numbers(column, name, where)
    if numbers is not None:
        return to_single_precision(name, numbers, where)
    texts, codes = _parquet_codes(column)
    check_few_texts(name, codes, where)
    return CodedColumn.from_codes(texts, codes)


def _parquet_times(column: Any, name: str, source: Path, where: Where) -> NDArray[Any]:
    values: NDArray[Any] = column.to_numpy()
    if values.dtype.kind == "M":
        return values.view(np.int64)
    times = _parquet_numbers(column, name, where)
    if times is None:
        raise DataError(f"{source}: {name}: expected numbers or timestamps, came text")
    return times


def _parquet_numbers(column: Any, name: str, where: Where) -> NDArray[Any] | None:
    """Convert an Arrow column to int64 or floats; None if it is not one of numbers.

    Raises DataError at the first value that is not finite.
    """
    import pyarrow.types as kinds

    if kinds.is_integer(column.type) or kinds.is_boolean(column.type):
        return np.asarray(column.to_numpy(), dtype=np.int64)
    if not kinds.is_floating(column.type):
        return None
    values: NDArray[Any] = column.to_numpy()
    not_finite = np.flatnonzero(~np.isfinite(values))
    if len(not_finite):
        at = int(not_finite[0])
        raise DataError(f"{where(at)}: {name}: expected a number, came {values[at]}")
    return values


def _parquet_codes(column: Any) -> tuple[list[str], NDArray[np.int32]]:
    """Number an Arrow column's values as texts, in the order in which they first appear."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(column.type):  # it may hold texts that no row has, in any order
        column = column.cast(column.type.value_type)
    encoded = column.dictionary_encode().combine_chunks()
    texts = encoded.dictionary.to_numpy(zero_copy_only=False).astype(np.str_)
    return texts.tolist(), np.asarray(encoded.indices.to_numpy(), dtype=np.int32)
