"""Reading text tables row by row, so that a broken row is told with its file and line."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.manifest import DataError, WrongRequest


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


def records(
    file: Iterable[bytes], name: str, columns: list[str], delimiter: str
) -> Iterator[tuple[str, list[str]]]:
    """The named columns of each row of a CSV file with a header, after where the row begins."""
    reader = csv.reader(decoded(file, name), delimiter=delimiter)
    try:
        header = next(reader, [])
        at = [_place(column, header, name) for column in columns]
        line = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(header):
                raise DataError(f"{name}:{line}: expected {len(header)} columns, came {len(row)}")
            if row:  # else a blank line, as many a file ends with
                yield f"{name}:{line}", [row[column] for column in at]
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: not readable as CSV: {error}") from None


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
