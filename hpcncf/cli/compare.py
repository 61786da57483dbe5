"""`hpcncf compare`: test whether two runs or studies differ."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.errors import UsageError

if TYPE_CHECKING:
    from hpcncf_analysis.compare import Comparison, Side

EPILOG = """\
A and B are results folders, run ids, or run folders. B / A above 1 is faster.
With --threshold it is a check for CI: exit code 4 if slower or worse, 3 if the repeats are too few.
example: hpcncf compare results/before results/after --threshold 0.05
"""
EXPECTED = "expected a results folder (with plan.json), one of its runs/<id>, or a run's id"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="what it was before")
    parser.add_argument("b", metavar="B", help="what it is now")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where runs' ids are looked up")
    parser.add_argument(
        "--repeats", action="store_true", help="of a run that is named, take all its repeats"
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="SHARE",
        help="exit with 4 where B is slower by more than this share (0.05: 5 %%), or worse",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of text")
    form.add_argument("--markdown", action="store_true", help="print it for a pull request")


def run(args: argparse.Namespace) -> int:
    if args.threshold is not None and not 0 <= args.threshold < 1:
        raise UsageError(f"--threshold: expected a share from 0 to below 1, came {args.threshold}")
    from hpcncf_analysis.compare import compare, markdown

    found = compare(*(_side(name, args.results, args.repeats) for name in (args.a, args.b)))
    if not found.pairs:
        raise UsageError(
            "no configuration is in both: "
            f"only in A: {'; '.join(found.only_a)}; only in B: {'; '.join(found.only_b)}; "
            "give a run of each to compare those two"
        )
    checked = {}
    if args.threshold is not None:
        checked = {
            "threshold": args.threshold,
            "failures": found.failures(args.threshold),
            "open": found.open_questions(args.threshold),
        }
    if args.json:
        from hpcncf.cli.output import print_json

        print_json("compare", found.plain() | checked)
    elif args.markdown:
        print(markdown(found, args.threshold), end="")
    else:
        _show(found, args.threshold)
    if checked.get("failures"):
        return 4
    return 3 if checked.get("open") else 0


def _side(name: str, results: Path | None, repeats: bool) -> Side:
    from hpcncf.paths import ResultPaths
    from hpcncf_analysis.compare import side_from_results

    path = Path(name)
    if (path / "plan.json").exists():
        return side_from_results(name, ResultPaths(path))
    if path.is_dir() and path.resolve().parent.name == "runs":
        folder = path.resolve()
        return side_from_results(name, ResultPaths(folder.parents[1]), folder.name, repeats)
    if path.exists() or "/" in name:
        raise UsageError(f"{name}: {EXPECTED}")
    from hpcncf.cli import lookup

    try:
        paths, _, run = lookup.run(name, results)
    except UsageError as error:
        raise UsageError(f"{error}; {EXPECTED}") from None
    return side_from_results(f"{paths.folder.name} {run.id}", paths, run.id, repeats)


def _show(found: Comparison, threshold: float | None) -> None:
    from hpcncf.cli.output import filled, width
    from hpcncf_analysis.compare import above, below, pairs_table, verdicts

    for line in above(found):
        print(filled(line))
    print(f"\n{pairs_table(found).layout(width())}")
    notes = below(found)
    if notes:
        print()
    for line in notes:
        print(filled(line))
    if threshold is not None:
        print("", *verdicts(found, threshold), sep="\n")
