"""Reading text tables row by row, so that a broken row is told with its file and line."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data.manifest import DataError


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that is not blank, without its end, after where it is: `FILE:LINE`."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}:{number}", line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: {error.reason} near byte {error.start}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def records(
    file: IO[str], name: str, columns: list[str], delimiter: str
) -> Iterator[tuple[str, list[str]]]:
    """The named columns of each row of a CSV file with a header, after where the row is."""
    reader = csv.reader(file, delimiter=delimiter)
    try:
        header = next(reader, [])
        missing = [column for column in columns if column not in header]
        if missing:
            raise DataError(f"{name}: no column {missing[0]!r}; its columns: {', '.join(header)}")
        at = [header.index(column) for column in columns]
        for row in reader:
            if not row:  # a blank line, as many a file ends with
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{name}:{reader.line_num}: expected {len(header)} columns, came {len(row)}"
                )
            yield f"{name}:{reader.line_num}", [row[column] for column in at]
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 text: {error.reason}") from None
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: not readable as CSV: {error}") from None


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
