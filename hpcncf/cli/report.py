"""`hpcncf report`: collects, then writes one page that says what to ask for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.cli import collect

if TYPE_CHECKING:
    from hpcncf.plan import Run
    from hpcncf.records import NodeRecord, RankRecord
    from hpcncf_analysis.advice.files import Written

HELP = "collect, then write one page of tables, figures and what to ask for"
EPILOG = """\
writes RESULTS/report/report.html (one file, no network needed), report.md and figures/, and what to
ask for next: next.yaml, a job file for `hpcncf submit`, and next.sbatch, a script for sbatch (where
they differ from that, next-fastest and next-cheapest, too); works for partial results; exit codes:
0 every run is complete (a command: has ended); 3 not yet; 1 an error; 2 no results folder
example: hpcncf report results/demo
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS", type=Path, help="a job's results folder")
    parser.add_argument(
        "--quality", metavar="HR10", type=_share, help="tell the time until HR@10 reaches this"
    )
    parser.add_argument(
        "--open", action="store_true", help="open the page in this machine's browser"
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"expected an HR@10 above 0, up to 1, came {text}")
    return share


def run(args: argparse.Namespace) -> int:
    from hpcncf import results
    from hpcncf_analysis import report
    from hpcncf_analysis.diagnosis import Diagnosis, diagnose

    diagnoses: dict[str, Diagnosis] = {}

    def judge(run: Run, ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> None:
        diagnoses[run.id] = diagnose(ranks, nodes)

    paths, found = collect.gather(args.results, judge)
    collect.say_skipped(found)
    with results.writing(paths.report):
        written = report.write(found, paths, args.quality, diagnoses)
    print(collect.summary(found))
    print(f"\n{written.conclusion.sentence}\n")
    for sentence in written.told:
        print(f"{sentence}\n")
    print(f"report: {written.html}")
    _say_advised(written.advised)
    if args.open:
        import webbrowser

        webbrowser.open(written.html.resolve().as_uri())
    return collect.exit_code(found)


def _say_advised(advised: Sequence[Written]) -> None:
    if not advised:
        return
    first, *others = advised
    by_hand = f" (or sbatch {first.script})" if first.script else ""
    print(f"next: hpcncf submit {first.job}{by_hand}")
    if first.advice.changed:
        print(f"  {first.advice.changed.text}")
    print(f"  {first.advice.sureness}")
    for other in others:
        print(f"the {other.advice.choice}, {other.advice.chosen.label}: {other.job}")
