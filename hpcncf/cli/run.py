"""`hpcncf run`: measure any command."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.errors import HpcncfError, UsageError

if TYPE_CHECKING:
    from hpcncf.job.spec import Remedies
    from hpcncf.records.schema import NodeRecord, RankRecord
    from hpcncf.worker.record_command import RecordedCommand


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
    try:
        try:
            recorded = record(
                words, results, args.name, not args.no_probe, remedies, load=load_for_programs
            )
        except (CannotStart, UsageError):
            raise
        except HpcncfError as error:  # a folder that cannot be written must not cost a job
            print(f"hpcncf: {error}", file=sys.stderr)
            results = _elsewhere(words)
            recorded = record(
                words, results, args.name, not args.no_probe, remedies, True, load_for_programs
            )
    except CannotStart as error:
        print(f"hpcncf: {error}", file=sys.stderr)
        return error.exit_code
    try:  # the command ended as it did, whatever becomes of the summary
        is_first = recorded.plain_rank["rank"] == 0
        if json_file and is_first:
            write_json(json_file, recorded)
        if not args.quiet and is_first:
            show(recorded)
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
    from hpcncf.cli.run_summary import import_diagnosis
    from hpcncf.job import plan
    from hpcncf.records import schema

    import_diagnosis()
    for kind in (plan.Run, schema.RankRecord, schema.NodeRecord):
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


def show(recorded: RecordedCommand) -> None:
    from hpcncf.cli.output import format_path
    from hpcncf.cli.run_summary import BLOCKS, PLAIN, lines

    rank, node, ranks, nodes = _records(recorded)
    encoding = (sys.stderr.encoding or "").lower()
    marks = BLOCKS if encoding.startswith("utf") else PLAIN
    text = lines(
        rank,
        node,
        format_path(recorded.folder),
        marks,
        ranks or None,
        nodes or None,
    )
    print("", *text, sep="\n", file=sys.stderr)


def _records(
    recorded: RecordedCommand,
) -> tuple[RankRecord, NodeRecord, list[RankRecord], list[NodeRecord]]:
    """Return this rank's and node's records, and those of all; where one says all, its views.

    The views load no schema.
    """
    rank, node = recorded.plain_rank, recorded.plain_node
    if rank["world_size"] == 1 and not rank["program"]:
        from hpcncf.records.plain import as_attributes

        return as_attributes(rank, "cores", "cpu", "memory", "io"), as_attributes(node), [], []
    from hpcncf.worker.record_command import others

    return recorded.rank, recorded.node, *others(recorded)


def write_json(path: Path, recorded: RecordedCommand) -> None:
    """Write the records of the rank and the node to one JSON file.

    A failure is only reported: it cannot change how the command ended.
    """
    import json

    from hpcncf.cli.run_summary import conclusion
    from hpcncf.files import write_text

    plain = {
        "folder": str(recorded.folder),
        "conclusion": conclusion(*_records(recorded)[:2]),
        "rank": recorded.plain_rank,
        "node": recorded.plain_node,
    }
    is_new = not path.parent.exists()
    try:
        write_text(path, json.dumps(plain, indent=1, allow_nan=False) + "\n")
        if is_new:
            print(f"hpcncf: {path.parent}: new folder, made for {path.name}", file=sys.stderr)
    except OSError as error:
        print(f"hpcncf: {path}: not written: {error.strerror}", file=sys.stderr)
