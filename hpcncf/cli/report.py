"""`hpcncf report`: write the report and the next request."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.cli import collect

if TYPE_CHECKING:
    from hpcncf.job.plan import Run
    from hpcncf.records.schema import NodeRecord, RankRecord

EPILOG = """\
Writes RESULTS/report/: report.html (one file, works offline), report.md, figures/, and the next
request as next.yaml (for `hpcncf submit`) and next.sbatch (for sbatch). Works on partial results.
Exit code 3: not all runs are complete.
example: hpcncf report results/demo
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS", type=Path, help="a job's results folder")
    parser.add_argument(
        "--quality", metavar="HR10", type=_share, help="show the time until HR@10 reaches this"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write there (default: RESULTS/report)"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="also write a timeline of the runs for ui.perfetto.dev or chrome://tracing: phases of "
        "each rank, hot lines, busy share of each core",
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
    from hpcncf.cli.output import filled, format_path, width
    from hpcncf.records.plan_file import writing
    from hpcncf_analysis.diagnosis.diagnose import diagnose
    from hpcncf_analysis.diagnosis.evidence import Diagnosis
    from hpcncf_analysis.report.build import terminal_sentences, write_report
    from hpcncf_analysis.report.trace import Trace

    diagnoses: dict[str, Diagnosis] = {}
    trace = Trace()

    def judge(run: Run, ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> None:
        diagnoses[run.id] = diagnose(ranks, nodes)
        if args.trace:
            trace.add_run(run.id[:8], ranks, nodes)

    paths, found = collect.gather([args.results], args.output, judge)
    collect.print_skipped(found)
    with writing(paths.report):
        data = write_report(found, paths, diagnoses, args.quality)
    print(collect.summary(found))
    print(f"\n{filled(data.conclusion.sentence)}\n")
    if table := data.conclusion.choices:
        print(f"{table.layout(width())}\n")
    for sentence in terminal_sentences(data):
        print(f"{filled(sentence)}\n")
    html = paths.report / "report.html"
    print(f"report: {html}")
    if args.trace:
        with writing(args.trace):
            trace.write(args.trace)
        print(f"timeline: {args.trace} (open it at ui.perfetto.dev)")
    for each in data.written:
        by_hand = f" (or sbatch {format_path(each.script)})" if each.script else ""
        print(f"{each.advice.purpose}: {each.command(format_path(each.job))}{by_hand}")
    if args.open:
        import webbrowser

        webbrowser.open(html.resolve().as_uri())
    return collect.exit_code(found)
