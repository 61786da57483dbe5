"""Reading a Parquet file as `hpcncf data prepare parquet` does: Arrow's threads, named columns.

All ways take turns in each round, on a made file that lies in the page cache.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
from pyarrow import parquet

from hpcncf.ncf.data.readers import PARQUET_BUFFER, PARQUET_ROWS, Columns, read_parquet

ROWS: Final = 1 << 20
ROUNDS: Final = 5
USERS: Final = 40_000
ITEMS: Final = 20_000
NOTES: Final = 8
"""Columns of text that nobody asks for."""
NAMED: Final = Columns("user", "item", ("hour", "weather"))


@dataclass
class Way:
    name: str
    threads: int
    columns: Columns | None
    """None: Arrow alone decodes every column, and nothing is made of them."""
    seconds: list[float] = field(default_factory=list)

    def read(self, source: Path) -> None:
        began = time.perf_counter()
        if self.columns is None:
            decode(source, NAMED.names(), self.threads)
        else:
            for _ in read_parquet(source, self.columns, lambda _: None, self.threads):
                pass
        self.seconds.append(time.perf_counter() - began)


def decode(source: Path, names: Sequence[str], threads: int) -> None:
    pyarrow.set_cpu_count(threads)
    with parquet.ParquetFile(source, buffer_size=PARQUET_BUFFER, pre_buffer=False) as file:
        for _ in file.iter_batches(PARQUET_ROWS, columns=[*names], use_threads=threads > 1):
            pass


def written(path: Path) -> Path:
    drawn = np.random.default_rng(1)
    weather = np.array(["sun", "rain", "snow"])
    table: dict[str, Any] = {
        "user": drawn.integers(0, USERS, ROWS),
        "item": drawn.integers(0, ITEMS, ROWS),
        "hour": drawn.random(ROWS) * 24,
        "weather": weather[drawn.integers(0, 3, ROWS)],
    }
    for number in range(NOTES):
        table[f"note{number}"] = drawn.integers(0, 2**60, ROWS).astype(np.str_)
    parquet.write_table(pyarrow.table(table), path, row_group_size=ROWS // 8)
    return path


def ways() -> list[Way]:
    every = Columns("user", "item", ("hour", "weather", *(f"note{n}" for n in range(NOTES))))
    counts = sorted({1, len(os.sched_getaffinity(0))})
    decoded = [Way("Arrow decodes the named columns", threads, None) for threads in counts]
    read = [Way("`prepare` reads the named columns", threads, NAMED) for threads in counts]
    return [*decoded, *read, *(Way("`prepare` reads all columns", each, every) for each in counts)]


def main() -> int:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        source, each = written(Path(folder) / "made.parquet"), ways()
        for number in range(ROUNDS + 1):
            for way in each if number % 2 else reversed(each):
                way.read(source)
        size_mib = source.stat().st_size / 2**20
    print(f"{ROWS:,} rows of {4 + NOTES} columns, {size_mib:.0f} MiB; medians of {ROUNDS} rounds.")
    print("\n| | threads | rows/s | seconds |\n|---|---:|---:|---:|")
    for way in each:
        seconds = statistics.median(way.seconds[1:])  # the first warmed up
        print(f"| {way.name} | {way.threads} | {ROWS / seconds:,.0f} | {seconds:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
