"""`hpcncf run`: measure any command."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.cli import auto, early
from hpcncf.errors import HpcncfError, UsageError

if TYPE_CHECKING:
    from hpcncf.job.spec import Remedies
    from hpcncf.tune.auto import AutoChoice
    from hpcncf.worker.record_command import RecordedCommand
    from hpcncf_analysis.diagnosis.summary import Summary


EPILOG = """\
The command keeps its terminal, input, output, signals and exit code; the summary goes to
standard error. 126: not executable; 127: not found. If signal n ends the command, the same
signal ends hpcncf: 128+n in a shell.

example: hpcncf run -- python train.py --epochs 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results/run"),
        metavar="DIR",
        help="where the record goes, beside those of earlier commands (default: %(default)s)",
    )
    parser.add_argument("--name", help="what tables call this run (default: the command)")
    parser.add_argument(
        "--no-probe",
        action="store_true",
        help="do not look into the command's Python processes",
    )
    parser.add_argument(
        "--with",
        dest="remedies",
        default="",
        metavar="REMEDIES",
        help="change the program from outside, as rowwise,threads=1,workers=2,persistent_workers,"
        "prefetch_factor=4,pin_memory,fused,foreach,omp=passive; the summary shows what it did",
    )
    auto.add_arguments(parser)
    parser.add_argument(
        "--early",
        type=early.parse_seconds,
        metavar="SECONDS",
        help="print a first verdict after so long and 100 steps; in a batch job after 120",
    )
    parser.add_argument("--no-early", action="store_true", help="no first verdict")
    parser.add_argument("--quiet", action="store_true", help="no summary at the end")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the summary's figures there as JSON"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command to run"
    )


def run(args: argparse.Namespace) -> int:
    from hpcncf.worker.child_process import CannotStart, shell_code
    from hpcncf.worker.record_command import record
    from hpcncf.worker.terminal import die_of

    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        raise UsageError("run: no command given, as in: hpcncf run -- python train.py")
    remedies = _parse_remedies(args.remedies)
    if remedies and args.no_probe:
        raise UsageError("run: --with is done by the probe: remove --no-probe")
    # The command may remove the current folder.
    results, json_file = args.results.resolve(), args.json and args.json.resolve()
    if choice := auto.choose(args, words, results):
        remedies = choice.remedies or None
    probe, load = not args.no_probe, load_for_programs
    begun = early.watcher(args.early, not (args.no_early or args.quiet), os.environ)
    try:
        try:
            recorded = record(words, results, args.name, probe, remedies, False, load, begun)
        except (CannotStart, UsageError):
            raise
        except HpcncfError as error:  # a folder that cannot be written must not cost a job
            print(f"hpcncf: {error}", file=sys.stderr)
            results = _elsewhere(words)
            recorded = record(words, results, args.name, probe, remedies, True, load, begun)
    except CannotStart as error:
        print(f"hpcncf: {error}", file=sys.stderr)
        return error.exit_code
    try:  # the command ended as it did, whatever becomes of the summary
        if recorded.plain_rank["rank"] == 0 and (json_file or not args.quiet):
            summary = summarize(recorded)
            if json_file:
                write_json(json_file, summary, recorded, choice)
            if not args.quiet:
                show(summary, recorded.folder, choice)
        if recorded.problem:
            print(f"hpcncf: {recorded.problem}", file=sys.stderr)
        sys.stderr.flush()
    except OSError:  # nobody reads standard error, or its disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    except Exception as error:
        kind = type(error).__name__
        print(f"hpcncf: no summary of {recorded.folder}: {kind}: {error}", file=sys.stderr)
    if recorded.exit_code < 0:
        die_of(-recorded.exit_code)
    return shell_code(recorded.exit_code)


def load_for_programs() -> None:
    """Import what the summary of a training program needs, which takes some tenths of a second."""
    from hpcncf.job import plan
    from hpcncf.records import schema
    from hpcncf_analysis.diagnosis.summary import import_diagnosis

    import_diagnosis()
    for kind in (plan.TypedCommand, schema.RankRecord, schema.NodeRecord):
        kind.model_rebuild(force=True)  # schemas of pydantic are built at their first use


def _parse_remedies(text: str) -> Remedies | None:
    if not text:
        return None
    from hpcncf.job.spec import Remedies

    return Remedies.parse(text)


def _elsewhere(words: list[str]) -> Path:
    """Create a temporary folder for the record.

    If that fails, the command replaces this process and runs without a record.
    """
    import tempfile

    try:
        folder = Path(tempfile.mkdtemp(prefix="hpcncf-run-"))
    except OSError:
        print("hpcncf: the command runs without a record", file=sys.stderr, flush=True)
        os.execvp(words[0], words)
    print(f"hpcncf: the command runs, and its record goes to {folder}", file=sys.stderr)
    return folder


def summarize(recorded: RecordedCommand) -> Summary:
    """Build the summary of a command from the records of all its ranks and nodes.

    The record of a lone rank that the probe did not observe is read as a view, which loads no
    schema.
    """
    from hpcncf_analysis.diagnosis import summary

    rank, node = recorded.plain_rank, recorded.plain_node
    if rank["world_size"] == 1 and not rank["program"]:
        from hpcncf.records.plain import as_attributes

        view = as_attributes(rank, "cores", "cpu", "memory", "io")
        return summary.summarize([view], [as_attributes(node)])
    from hpcncf.worker.record_command import others

    ranks, nodes = others(recorded)
    return summary.summarize(
        [recorded.rank, *(each for each in ranks if each.rank != recorded.rank.rank)],
        [recorded.node, *(each for each in nodes if each.node_index != recorded.node.node_index)],
    )


def show(summary: Summary, folder: Path, choice: AutoChoice | None = None) -> None:
    from hpcncf.cli.output import format_path
    from hpcncf.cli.run_summary import lines, marks_for

    trials = ["", *auto.describe(choice)] if choice else []
    text = lines(summary, format_path(folder), marks_for(sys.stderr))
    print(*trials, "", *text, sep="\n", file=sys.stderr)


def write_json(
    path: Path, summary: Summary, recorded: RecordedCommand, choice: AutoChoice | None = None
) -> None:
    """Write the summary, and the records of the rank and the node, to one JSON file.

    A failure is only reported: it cannot change how the command ended.
    """
    from hpcncf.cli.output import format_json
    from hpcncf.files import write_text

    plain = {
        "folder": str(recorded.folder),
        **summary.plain(),
        "rank": recorded.plain_rank,
        "node": recorded.plain_node,
    }
    if choice:
        plain["auto"] = auto.plain(choice)
    is_new = not path.parent.exists()
    try:
        write_text(path, format_json("run", plain) + "\n")
        if is_new:
            print(f"hpcncf: {path.parent}: new folder, made for {path.name}", file=sys.stderr)
    except OSError as error:
        print(f"hpcncf: {path}: not written: {error.strerror}", file=sys.stderr)
