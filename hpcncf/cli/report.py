"""`hpcncf report`: collects, then writes one page that says what to ask for."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcncf.cli import collect

HELP = "collect, then write one page of tables, figures and what to ask for"
EPILOG = """\
writes RESULTS/report/report.html (one file, no network needed), report.md and figures/; works for
partial results; exit codes: 0 every run is complete (a command: has ended); 3 not yet;
1 an error; 2 no results folder
example: hpcncf report results/demo
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS", type=Path, help="a job's results folder")
    parser.add_argument(
        "--open", action="store_true", help="open the page in this machine's browser"
    )


def run(args: argparse.Namespace) -> int:
    paths, found = collect.gather(args.results)
    collect.say_skipped(found)
    from hpcncf import results
    from hpcncf_analysis import report

    with results.writing(paths.report):
        written = report.write(found, paths)
    print(collect.summary(found))
    print(f"\n{written.conclusion.sentence}\n")
    print(f"report: {written.html}")
    if args.open:
        import webbrowser

        webbrowser.open(written.html.resolve().as_uri())
    return collect.exit_code(found)
