"""Reading text tables row by row, so that a broken row is told with its file and line."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.manifest import DataError, WrongRequest

ROWS_AT_ONCE: Final = 1 << 10  # more of them at once leave the cache: half as fast


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that is not blank, without its end, after where it is: `FILE:LINE`."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(decoded(file, str(path)), 1):
                if line.strip():
                    yield f"{path}:{number}", line.rstrip("\r\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def decoded(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Each line as text, a byte order mark left out: read by line, so that a bad one is named."""
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}:{number}: not UTF-8 text: {error.reason}") from None


@dataclass(frozen=True)
class Block_text:
    """Some rows of a CSV file, blank lines left out."""

    name: str
    columns: list[tuple[str, ...]]
    """The named ones, in the order in which they were named."""
    lines: Sequence[int]
    """In which line of the file each row begins."""

    def where(self, at: int) -> str:
        return f"{self.name}:{self.lines[at]}"


def blocks(file: Iterable[bytes], name: str, columns: list[str], delimiter: str) -> Iterator[Block_text]:
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
) -> Block_text | None:
    if set(map(len, rows)) != {width}:
        kept = [place for place, row in enumerate(rows) if row]
        for place in kept:
            if len(rows[place]) != width:
                raise DataError(
                    f"{name}:{lines[place]}: expected {width} columns, came {len(rows[place])}"
                )
        rows, lines = [rows[place] for place in kept], [lines[place] for place in kept]
    columns = list(zip(*map(itemgetter(*at, at[0]), rows), strict=True))[: len(at)]
    return Block_text(name, columns, lines) if rows else None


def records(
    file: Iterable[bytes], name: str, columns: list[str], delimiter: str
) -> Iterator[tuple[str, list[str]]]:
    """The same row by row, after where the row begins: `FILE:LINE`."""
    for block in blocks(file, name, columns, delimiter):
        for at, row in enumerate(zip(*block.columns, strict=True)):
            yield block.where(at), list(row)


def _place(column: str, header: list[str], name: str) -> int:
    if header.count(column) != 1:
        why = f"{header.count(column)} columns are called" if column in header else "no column"
        raise WrongRequest(f"{name}: {why} {column!r}; its columns: {', '.join(header)[:200]}")
    return header.index(column)


def integer(text: str, where: str, what: str, least: int = 0) -> int:
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


def source_of(files: Iterable[Path]) -> dict[str, str]:
    """`name` and `sha256` of one input file, or of several together."""
    digests = {path.name: sha256(path) for path in files}
    if len(digests) == 1:
        ((name, digest),) = digests.items()
        return {"name": name, "sha256": digest}
    joined = "".join(digests.values()).encode()
    return {"name": ", ".join(digests), "sha256": hashlib.sha256(joined).hexdigest()}
