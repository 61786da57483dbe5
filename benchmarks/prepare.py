"""`hpcncf data prepare csv` on tables of Yelp's shape: how long, and the memory at its peak.

The tables are made in a temporary folder (TMPDIR) and gone at the end. The larger one is ten times
the smaller, so that memory that grew with the rows would show.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.verbs import measure_command
from hpcncf.ncf.data.synthetic import SHAPES

SHAPE: Final = SHAPES["yelp"]
SIZES: Final = (400_000_000, 4_000_000_000)
MOST_BYTES: Final = 1_000_000_000
FREE: Final = 3.5
"""Times the larger table: beside it its rows lie in files, and then in arrays."""
ROWS_AT_ONCE: Final = 1 << 16
CONTEXT: Final = [f"c{number}" for number in range(SHAPE.context)]


@dataclass(frozen=True)
class Prepared:
    rows: int
    seconds: float
    peak_bytes: int


def written(path: Path, size: int) -> int:
    """A table of so many bytes; returns its rows."""
    drawn = np.random.default_rng(1)
    context = [
        ",".join(f"{value:.4f}" for value in row) for row in drawn.random((997, SHAPE.context))
    ]
    rows = 0
    with path.open("w") as text:
        text.write(",".join(["user", "item", "time", *CONTEXT]) + "\n")
        while text.tell() < size:
            users = drawn.integers(0, SHAPE.users, ROWS_AT_ONCE).tolist()
            items = drawn.integers(0, SHAPE.items, ROWS_AT_ONCE).tolist()
            for at, (user, item) in enumerate(zip(users, items, strict=True), rows):
                text.write(f"user-{user},item-{item},{at},{context[at % len(context)]}\n")
            rows += ROWS_AT_ONCE
    return rows


def prepared(source: Path, rows: int) -> Prepared:
    """Raises SystemExit where the command fails."""
    command = [sys.executable, "-m", "hpcncf", "data", "prepare", "csv", "--source", str(source)]
    command += ["--user", "user", "--item", "item", "--time", "time"]
    command += ["--context", ",".join(CONTEXT), "-o", f"{source}.prepared"]
    each = measure_command(command)
    return Prepared(rows, each.seconds, each.peak_bytes)


def main() -> int:
    """Print the table; 1 where memory is not kept below the limit."""
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        if shutil.disk_usage(folder).free < FREE * max(SIZES):
            needed = FREE * max(SIZES) / 1e9
            print(f"prepare: needs {needed:.0f} GB in {folder}: set TMPDIR", file=sys.stderr)
            return 1
        print(f"Is a table of {max(SIZES) / 1e9:.0f} GB prepared in less than 1 GB of memory?\n")
        print("| CSV, GB | rows | columns | seconds | rows/s | peak memory, MB | |")
        print("|---:|---:|---:|---:|---:|---:|---|")
        for size in SIZES:
            source = Path(folder) / f"{size}.csv"
            each = prepared(source, written(source, size))
            peaks.append(each.peak_bytes)
            print(
                f"| {source.stat().st_size / 1e9:.1f} | {each.rows:,} | {3 + len(CONTEXT)} "
                f"| {each.seconds:.0f} | {each.rows / each.seconds:,.0f} "
                f"| {each.peak_bytes / 1e6:,.0f} "
                f"| {'yes' if each.peak_bytes < MOST_BYTES else '**no**'} |",
                flush=True,
            )
            source.unlink()
            shutil.rmtree(f"{source}.prepared")
    return 0 if max(peaks) < MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
