"""Prepare MovieLens ratings: `ratings.dat` (1M, 10M) and `u.data` (100K).

Every rating is a positive. The row held out for each user is the latest; of equal times, the last
in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from hpcncf.ncf.data.manifest import DataError, WrongRequest
from hpcncf.ncf.data.prepare import Block, PreparedFolder, Recipe, spool_rows, write_prepared
from hpcncf.ncf.data.readers import (
    ROWS_AT_ONCE,
    describe_source,
    is_number,
    parse_integer,
    read_lines,
)
from hpcncf.ncf.data.split import Report, SplitCounts, leave_one_out

SEPARATORS: Final = {"ratings.dat": "::", "u.data": "\t"}


def prepare_movielens(
    folder: Path,
    source: Path,
    seed: int = 1,
    test_negatives: int = 99,
    force: bool = False,
    report: Report = lambda _: None,
) -> PreparedFolder:
    """Prepare a ratings file, or the one in a folder."""
    if source.is_dir():
        found = [source / name for name in SEPARATORS if (source / name).is_file()]
        if not found:
            raise WrongRequest(f"{source}: contains neither {' nor '.join(SEPARATORS)}")
        source = found[0]
    options = {"seed": seed, "test_negatives": test_negatives}
    recipe = Recipe("movielens", describe_source([source]), options)

    def fill(into: Path) -> SplitCounts:
        with spool_rows(into, source, read_ratings(source, report)) as rows:
            return leave_one_out(into, rows, seed, test_negatives, rows.times, report)

    return write_prepared(folder, recipe, f"MovieLens {source.name}", fill, force)


def read_ratings(source: Path, report: Report) -> Iterator[Block]:
    """The ratings, a block at a time, with their times in seconds since 1970.

    Raises DataError with the line of the first broken one.
    """
    separator = SEPARATORS.get(source.name, "::" if source.suffix == ".dat" else "\t")
    ratings = (_parse_rating(where, line, separator) for where, line in read_lines(source))
    count = 0
    while some := list(islice(ratings, ROWS_AT_ONCE)):
        users, items, seconds = (list(each) for each in zip(*some, strict=True))
        times = np.array(seconds, dtype=np.int64)
        yield Block(users, items, {}, times, lambda _: str(source))
        count += len(some)
        report(f"reading {source}: {count:,} ratings")


def _parse_rating(where: str, line: str, separator: str) -> tuple[int, int, int]:
    """User, item and time."""
    fields = line.split(separator)
    if len(fields) != 4:
        spelled = separator.replace("\t", "TAB")
        raise DataError(
            f"{where}: expected user{spelled}item{spelled}rating{spelled}time, came {line[:80]!r}"
        )
    if not is_number(fields[2]):
        raise DataError(f"{where}: rating: expected a number, came {fields[2]!r}")
    return (
        parse_integer(fields[0], where, "user"),
        parse_integer(fields[1], where, "item"),
        parse_integer(fields[3], where, "time"),
    )
