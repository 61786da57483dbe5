"""MovieLens ratings: `ratings.dat` (1M, 10M) and `u.data` (100K). Every rating is a positive.

The row held out for each user is the latest; of equal times, the last in the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcncf.ncf.data import text
from hpcncf.ncf.data.manifest import DataError, WrongRequest
from hpcncf.ncf.data.prepared import Recipe, Written, write
from hpcncf.ncf.data.rows import Rows, Split, leave_one_out, numbered

SEPARATORS: Final = {"ratings.dat": "::", "u.data": "\t"}


def prepare(
    folder: Path, source: Path, seed: int = 1, test_negatives: int = 99, force: bool = False
) -> Written:
    """Prepare a ratings file, or the one in a folder."""
    source = _file(source)
    options = {"seed": seed, "test_negatives": test_negatives}
    recipe = Recipe("movielens", text.source_of([source]), options)

    def build() -> Split:
        rows, times = read(source)
        return leave_one_out(rows, seed, test_negatives, times)

    return write(folder, recipe, f"MovieLens {source.name}", build, force)


def _file(source: Path) -> Path:
    if not source.is_dir():
        return source
    found = [source / name for name in SEPARATORS if (source / name).is_file()]
    if not found:
        raise WrongRequest(f"{source}: holds neither {' nor '.join(SEPARATORS)}")
    return found[0]


def read(source: Path) -> tuple[Rows, NDArray[Any]]:
    """The rows, and the time of each in seconds since 1970."""
    separator = SEPARATORS.get(source.name, "::" if source.suffix == ".dat" else "\t")
    shown = separator.replace("\t", "TAB")
    users, items, times = [], [], []
    for where, line in text.lines(source):
        fields = line.split(separator)
        if len(fields) != 4:
            raise DataError(
                f"{where}: expected user{shown}item{shown}rating{shown}time, came {line[:80]!r}"
            )
        users.append(text.integer(fields[0], where, "user"))
        items.append(text.integer(fields[1], where, "item"))
        times.append(text.integer(fields[3], where, "time"))
        if not text.is_number(fields[2]):
            raise DataError(f"{where}: rating: expected a number, came {fields[2]!r}")
    if not users:
        raise DataError(f"{source}: has no rows")
    return numbered(np.array(users), np.array(items)), np.array(times)
