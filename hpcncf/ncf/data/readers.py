"""Read CSV, Parquet and NCF files in blocks; download files."""

from __future__ import annotations

import csv
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException, HTTPResponse
from itertools import accumulate, chain, islice
from operator import itemgetter
from pathlib import Path
from queue import Empty, Queue
from secrets import token_hex
from threading import Thread
from typing import Any, Final, Literal
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.arrays import Int64s, Rows, Split
from hpcncf.ncf.data.manifest import DataError, WrongRequest
from hpcncf.ncf.data.prepare import Block, Recipe, PreparedFolder, spool_rows, write_prepared
from hpcncf.ncf.data.split import SplitCounts, leave_one_out, write_split

ROWS_AT_ONCE: Final = 1 << 10  # more of them at once leave the cache: half as fast


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that is not blank, without its end, after where it is: `FILE:LINE`."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(decode_lines(file, str(path)), 1):
                if line.strip():
                    yield f"{path}:{number}", line.rstrip("\r\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def decode_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Each line as text, a byte order mark left out: read by line, so that a bad one is named."""
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}:{number}: not UTF-8 text: {error.reason}") from None


@dataclass(frozen=True)
class CsvBlock:
    """Some rows of a CSV file, blank lines left out."""

    name: str
    columns: list[tuple[str, ...]]
    """The named ones, in the order in which they were named."""
    lines: Sequence[int]
    """In which line of the file each row begins."""

    def where(self, at: int) -> str:
        return f"{self.name}:{self.lines[at]}"


def read_csv_blocks(
    file: Iterable[bytes], name: str, columns: list[str], delimiter: str
) -> Iterator[CsvBlock]:
    """The named columns of a CSV file with a header, many rows at once."""
    reader = csv.reader(_decoded(file), delimiter=delimiter)
    try:
        header = next(reader, [])
        at = [_place(column, header, name) for column in columns]
        while True:
            line = reader.line_num + 1
            rows = list(islice(reader, ROWS_AT_ONCE))
            if not rows:
                return
            lines = _lines(rows, line, reader.line_num)
            if block := _block(name, rows, lines, at, len(header)):
                yield block
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: not readable as CSV: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{name}:{reader.line_num + 1}: not UTF-8 text: {error.reason}") from None


def _decoded(file: Iterable[bytes]) -> Iterator[str]:
    lines = iter(file)
    return chain((line.decode("utf-8-sig") for line in islice(lines, 1)), map(bytes.decode, lines))


def _lines(rows: list[list[str]], first: int, last: int) -> Sequence[int]:
    """A quoted field may hold ends of lines; a blank line is a row of no fields."""
    if last - first + 1 == len(rows):
        return range(first, last + 1)
    more = [sum(field.count("\n") for field in row) for row in rows]
    return [first + at + before for at, before in enumerate(accumulate(more, initial=0))][:-1]


def _block(
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
    """The same row by row, after where the row begins: `FILE:LINE`."""
    for block in read_csv_blocks(file, name, columns, delimiter):
        for at, row in enumerate(zip(*block.columns, strict=True)):
            yield block.where(at), list(row)


def _place(column: str, header: list[str], name: str) -> int:
    if header.count(column) != 1:
        why = f"{header.count(column)} columns are called" if column in header else "no column"
        raise WrongRequest(f"{name}: {why} {column!r}; its columns: {', '.join(header)[:200]}")
    return header.index(column)


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


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def one_hot(name: str, values: NDArray[Any]) -> tuple[NDArray[np.float32], list[str]]:
    """One column per distinct value, in their sorted order, named `name=value`."""
    distinct, which = np.unique(values, return_inverse=True)
    columns = np.zeros((len(values), len(distinct)), dtype=np.float32)
    columns[np.arange(len(values)), which] = 1
    return columns, [f"{name}={value}" for value in distinct]


def sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise WrongRequest(f"{path}: cannot be read: {error.strerror}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def describe_source(files: Iterable[Path]) -> dict[str, str]:
    """`name` and `sha256` of one input file, or of several together."""
    digests = {path.name: sha256(path) for path in files}
    if len(digests) == 1:
        ((name, digest),) = digests.items()
        return {"name": name, "sha256": digest}
    joined = "".join(digests.values()).encode()
    return {"name": ", ".join(digests), "sha256": hashlib.sha256(joined).hexdigest()}


# A context column of numbers is kept as it is, not scaled; one of text becomes one-hot. With a
# time
# column the latest row of each user is held out, without one a random row.

Say = Callable[[str], None]


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


def prepare_table(
    folder: Path,
    source: Path,
    kind: Literal["csv", "parquet"],
    columns: Columns,
    seed: int = 1,
    test_negatives: int = 99,
    force: bool = False,
    say: Say = lambda _: None,
    threads: int = 1,
) -> PreparedFolder:
    """Prepare a file with a header (.tsv: separated by tabs, else commas) or a Parquet file.

    The file is read block by block: it may be larger than memory, which holds its names only.
    `threads`: of Arrow's, for a Parquet file; whatever their number, the folder is the same.
    """
    options = asdict(columns) | {"seed": seed, "test_negatives": test_negatives}
    options["context"] = list(columns.context)
    say(f"reading the checksum of {source}")
    recipe = Recipe(kind, describe_source([source]), options)

    def fill(into: Path) -> SplitCounts:
        with spool_rows(into, source, _reader(kind, threads)(source, columns, say)) as rows:
            return leave_one_out(into, rows, seed, test_negatives, rows.times, say)

    return write_prepared(folder, recipe, source.name, fill, force)


def _reader(
    kind: Literal["csv", "parquet"], threads: int
) -> Callable[[Path, Columns, Say], Iterator[Block]]:
    if kind == "csv":
        return read_csv

    return partial(read_parquet, threads=threads)


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
            for block in read_csv_blocks(file, str(source), names, delimiter):
                found = dict(zip(names, block.columns, strict=True))
                if numeric is None:
                    numeric = {name for name in names if is_number(found[name][0])}
                yield _block_csv_file(columns, found, numeric, block.where)
                rows += len(block.lines)
                say(f"reading {source}: {file.tell() / size:.0%}, {rows:,} rows")
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from None


def _block_csv_file(
    columns: Columns, found: dict[str, Texts], numeric: set[str], where: Where
) -> Block:
    for name in (columns.user, columns.item):
        _refuse_blank(name, found[name], where)
    context = {
        name: _parse_numbers(name, found[name], where) if name in numeric else list(found[name])
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


def _parse_numbers(name: str, values: Texts, where: Where) -> NDArray[np.float64]:
    """The column's first value is a number: then all must be."""
    numbers = _numbers(values)
    if numbers is None:
        at = next(at for at, value in enumerate(values) if not is_number(value))
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


# Row group by row group, and of one as many rows at once as a block has: neither the file nor a
# row group has to fit into memory.

PARQUET_ROWS: Final = 1 << 16
PARQUET_BUFFER: Final = 1 << 20
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
        with parquet.ParquetFile(source, buffer_size=PARQUET_BUFFER, pre_buffer=False) as file:
            _refuse_missing(source, columns.names(), file.schema_arrow.names)
            rows, length = 0, file.metadata.num_rows
            for batch in file.iter_batches(
                PARQUET_ROWS, columns=columns.names(), use_threads=threads > 1
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


# The test rows and their negatives are those of the files. Line n of `*.test.negative` is
# `(user,item)`, the pair of line n of `*.test.rating`, and its negatives, separated by tabs.

ENDINGS: Final = (".train.rating", ".test.rating", ".test.negative")


def prepare_ncf_files(folder: Path, source: Path, force: bool = False) -> PreparedFolder:
    """Prepare the three files of a folder, or those that begin with `source`."""
    files = _files(source)
    name = files[0].name.removesuffix(ENDINGS[0])
    recipe = Recipe("ncf", describe_source(files), {})
    return write_prepared(
        folder, recipe, f"NCF files {name}", lambda into: write_split(into, read_ncf_files(files)), force
    )


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        found = sorted(source.glob(f"*{ENDINGS[0]}"))
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            raise WrongRequest(
                f"{source}: expected one *{ENDINGS[0]}, came {names}; "
                "give the path up to the data set's name, as in --source Data/ml-1m"
            )
        source = found[0]
    stem = next((source.name[: -len(end)] for end in ENDINGS if source.name.endswith(end)), None)
    return [source.with_name((stem or source.name) + ending) for ending in ENDINGS]


def read_ncf_files(files: list[Path]) -> Split:
    train, test = _pairs(files[0]), _pairs(files[1])
    negatives = _negatives(files[2], files[1], test)
    user_names = np.unique(np.concatenate([train[:, 0], test[:, 0]]))
    item_names = np.unique(np.concatenate([train[:, 1], test[:, 1], negatives.ravel()]))

    def rows(pairs: Int64s) -> Rows:
        return Rows(
            np.searchsorted(user_names, pairs[:, 0]).astype(np.int32),
            np.searchsorted(item_names, pairs[:, 1]).astype(np.int32),
            np.empty((len(pairs), 0), dtype=np.float32),
            [],
            user_names,
            len(item_names),
        )

    drawn = np.searchsorted(item_names, negatives).astype(np.int32)
    return Split(rows(train), rows(test), drawn)


def _pairs(path: Path) -> Int64s:
    """[rows, 2]: user and item; rating and time, where given, are not used."""
    pairs = []
    for where, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) < 2:
            raise DataError(
                f"{where}: expected user, item, rating, time separated by tabs, came {line[:80]!r}"
            )
        user = parse_integer(fields[0], where, "user")
        pairs.append((user, parse_integer(fields[1], where, "item")))
    if not pairs:
        raise DataError(f"{path}: has no rows")
    return np.array(pairs, dtype=np.int64)


def _negatives(path: Path, tested: Path, test: Int64s) -> Int64s:
    rows: list[list[int]] = []
    for where, line in read_lines(path):
        pair, *fields = line.rstrip("\t").split("\t")
        if len(rows) == len(test):
            raise DataError(f"{where}: one row more than the {len(test)} of {tested.name}")
        expected = "({},{})".format(*test[len(rows)])
        if pair.replace(" ", "") != expected:
            raise DataError(
                f"{where}: expected {expected}, the pair of {tested.name}, came {pair!r}"
            )
        if not fields or (rows and len(fields) != len(rows[0])):
            wanted = len(rows[0]) if rows else "one or more"
            raise DataError(f"{where}: expected {wanted} negatives, came {len(fields)}")
        rows.append([parse_integer(field, where, "negative") for field in fields])
    if len(rows) != len(test):
        raise DataError(f"{path}: {len(rows)} rows, but {tested.name} has {len(test)}")
    return np.array(rows, dtype=np.int64)


SOCKET_S: Final = 5.0
CONNECT_S: Final = 8.0
TOTAL_S: Final = 60.0


class Unavailable(DataError):
    """A published file that is neither here nor can be fetched now."""


def download(url: str, sha256: str, to: Path) -> None:
    """Fetch `url` into the file `to`. Raises Unavailable with the reason."""
    try:
        content = _read_response(_connect(url), time.monotonic() + TOTAL_S)
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"{url}: cannot be downloaded: {error}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise Unavailable(f"{url}: not the published file: SHA-256 {found}, expected {sha256}")
    _keep(content, to)


def _connect(url: str) -> HTTPResponse:
    """The opened URL. In a thread, because looking up a host's name knows no time limit."""
    answers: Queue[Any] = Queue()
    Thread(
        target=_answer, args=(answers, lambda: urlopen(url, timeout=SOCKET_S)), daemon=True
    ).start()
    try:
        answer = answers.get(timeout=CONNECT_S)
    except Empty:
        raise TimeoutError(f"no connection within {CONNECT_S:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    response: HTTPResponse = answer
    return response


def _answer(answers: Queue[Any], work: Callable[[], Any]) -> None:
    try:
        answers.put(work())
    except (OSError, HTTPException, ValueError) as error:
        answers.put(error)


def _read_response(response: HTTPResponse, deadline: float) -> bytes:
    parts = []
    with response:
        while part := response.read(1 << 16):
            parts.append(part)
            if time.monotonic() > deadline:
                raise TimeoutError(f"not done within {TOTAL_S:g} s")
    return b"".join(parts)


def _keep(content: bytes, to: Path) -> None:
    partial = to.with_name(f".{to.name}.{token_hex(4)}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(content)
            partial.replace(to)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"{to}: cannot be written: {error.strerror}") from None
