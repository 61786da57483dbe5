"""`hpcncf collect`: gather records into tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.errors import printable
from hpcncf.text import pluralize

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
    paths, found = gather(args.results, args.output)
    if args.json:
        from hpcncf.cli.output import print_json

        print_json("collect", as_plain(found, paths))
    else:
        print(summary(found))
        print(f"tables: {paths.tables}/{{runs,attempts,ranks,cores,epochs}}.csv")
    print_skipped(found)
    return exit_code(found)


def gather(
    folders: Sequence[Path], output: Path | None, seen: Seen | None = None
) -> tuple[ResultPaths, Collected]:
    """Collect results folders and write their tables, into `output` if given.

    Returns the paths and the tables.
    """
    from hpcncf.collect import collect
    from hpcncf.errors import UsageError
    from hpcncf.paths import ResultPaths
    from hpcncf.records.plan_file import writing

    if len(folders) > 1 and output is None:
        raise UsageError("-o DIR: is missing. Tables of several jobs need a folder of their own")
    several = [collect.collect(ResultPaths(folder), seen) for folder in folders]
    found = several[0] if len(several) == 1 else collect.merge(several)
    paths = ResultPaths(folders[0], output)
    with writing(paths.tables, "" if output else ". -o DIR writes to another folder"):
        collect.write(found, paths)
    return paths, found


def summary(found: Collected) -> str:
    """Summarize the states of the runs: `demo: 18 runs: 16 completed, 2 failed`."""
    counts = found.counts()
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    retired = sum(row["retired"] for row in found.runs)
    kept = f"; {retired} retired" if retired else ""
    return f"{found.job}: {pluralize(sum(counts.values()), 'run')}: {states or 'none'}{kept}"


def print_skipped(found: Collected) -> None:
    if found.skipped:
        print(f"skipped {pluralize(len(found.skipped), 'file')}:", file=sys.stderr)
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
