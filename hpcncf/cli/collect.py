"""`hpcncf collect`: gather records into tables."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.errors import printable

if TYPE_CHECKING:
    from hpcncf.collect.collect import Collected, Seen
    from hpcncf.paths import ResultPaths

EPILOG = """\
Writes RESULTS/tables/{runs,attempts,ranks,cores,epochs}.csv; may be repeated while runs work.
Exit code 3: not all runs are complete.
example: hpcncf collect results/demo
         hpcncf collect results/demo results/cores -o tables
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        metavar="RESULTS",
        type=Path,
        nargs="+",
        help="a job's results folder; of several, one set of tables",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write there (default: RESULTS/tables)"
    )


def run(args: argparse.Namespace) -> int:
    first, *others = args.results
    paths, found = gather_several(args) if others else gather(first, output=args.output)
    if args.json:
        print(json.dumps(as_plain(found, paths), indent=1))
    else:
        print(summary(found))
        print(f"tables: {paths.tables}/{{runs,attempts,ranks,cores,epochs}}.csv")
    print_skipped(found)
    return exit_code(found)


def gather(
    folder: Path, seen: Seen | None = None, output: Path | None = None
) -> tuple[ResultPaths, Collected]:
    """Collect the folder and write its tables; to the folder `output`, if it is given."""
    from hpcncf.collect import collect
    from hpcncf.paths import ResultPaths
    from hpcncf.records.plan_file import writing

    paths = ResultPaths(folder, output)
    found = collect.collect(paths, seen)
    with writing(paths.tables, "" if output else ". -o DIR writes to another folder"):
        collect.write(found, paths)
    return paths, found


def gather_several(args: argparse.Namespace) -> tuple[ResultPaths, Collected]:
    """Collect the folders into one set of tables, in `--output`."""
    from hpcncf.collect import collect
    from hpcncf.errors import UsageError
    from hpcncf.paths import ResultPaths
    from hpcncf.records.plan_file import writing

    if args.output is None:
        raise UsageError("-o DIR: is missing. Tables of several jobs need a folder of their own")
    found = collect.merge([collect.collect(ResultPaths(folder)) for folder in args.results])
    paths = ResultPaths(args.results[0], args.output)
    with writing(paths.tables):
        collect.write(found, paths)
    return paths, found


def summary(found: Collected) -> str:
    """`demo: 18 runs: 16 completed, 2 failed`."""
    counts = found.counts()
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    retired = sum(row["retired"] for row in found.runs)
    kept = f"; {retired} retired" if retired else ""
    total = sum(counts.values())
    return f"{found.job}: {total} {'run' if total == 1 else 'runs'}: {states or 'none'}{kept}"


def print_skipped(found: Collected) -> None:
    if found.skipped:
        number = len(found.skipped)
        print(f"skipped {number} {'file' if number == 1 else 'files'}:", file=sys.stderr)
        for reason in found.skipped:
            print(f"  {printable(reason)}", file=sys.stderr)


def as_plain(found: Collected, paths: ResultPaths) -> dict[str, object]:
    return {
        "job": found.job,
        "complete": found.complete,
        "states": found.counts(),
        "skipped": found.skipped,
        "tables": str(paths.tables),
        "runs": found.runs,
    }


def exit_code(found: Collected) -> int:
    return 0 if found.complete else 3
