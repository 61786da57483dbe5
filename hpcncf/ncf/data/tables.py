"""Interactions of a CSV or Parquet file, its columns named by the user.

A context column of numbers is kept as it is, not scaled; one of text becomes one-hot. With a time
column the latest row of each user is held out, without one a random row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from hpcncf.ncf.data import text
from hpcncf.ncf.data.splitting import Counts, leave_one_out
from hpcncf.ncf.data.spool import Block, spooled
from hpcncf.ncf.data.writing import Recipe, Written, write

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


def prepare(
    folder: Path,
    source: Path,
    kind: Literal["csv", "parquet"],
    columns: Columns,
    seed: int = 1,
    test_negatives: int = 99,
    force: bool = False,
    say: Say = lambda _: None,
    threads: int = 1,
) -> Written:
    """Prepare a file with a header (.tsv: separated by tabs, else commas) or a Parquet file.

    The file is read block by block: it may be larger than memory, which holds its names only.
    `threads`: of Arrow's, for a Parquet file; whatever their number, the folder is the same.
    """
    options = asdict(columns) | {"seed": seed, "test_negatives": test_negatives}
    options["context"] = list(columns.context)
    say(f"reading the checksum of {source}")
    recipe = Recipe(kind, text.source_of([source]), options)

    def fill(into: Path) -> Counts:
        with spooled(into, source, _reader(kind, threads)(source, columns, say)) as rows:
            return leave_one_out(into, rows, seed, test_negatives, rows.times, say)

    return write(folder, recipe, source.name, fill, force)


def _reader(
    kind: Literal["csv", "parquet"], threads: int
) -> Callable[[Path, Columns, Say], Iterator[Block]]:
    if kind == "csv":
        from hpcncf.ncf.data.csv_file import read_csv

        return read_csv
    from hpcncf.ncf.data.parquet import read_parquet

    return partial(read_parquet, threads=threads)
