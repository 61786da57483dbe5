"""`hpcncf sbatch`: submit a batch script as it is, and observe its job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from hpcncf.cli.early import parse_seconds
from hpcncf.errors import UsageError

DEFAULT: Final = Path("results/jobs")

EPILOG = """\
Options, standard output and exit code are sbatch's. The script is not changed. The page that
`hpcncf run` prints is the last thing in the job's log; `hpcncf diagnose JOBID` prints it again.

example: hpcncf sbatch --partition=cpu job.sh --epochs 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "hpcncf sbatch [-h] [--results DIR] [--no-probe] [sbatch's options] job.sh [ARGUMENT ...]"
        "\n       hpcncf sbatch [--results DIR] --print-env [--task-prolog]"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=DEFAULT,
        metavar="DIR",
        help="where the records go (default: %(default)s)",
    )
    parser.add_argument(
        "--no-probe", action="store_true", help="do not look into the job's Python processes"
    )
    parser.add_argument(
        "--early",
        type=parse_seconds,
        metavar="SECONDS",
        help="when the job's log gets a first verdict: after so long and 100 steps (default: 120)",
    )
    parser.add_argument("--no-early", action="store_true", help="no first verdict in the log")
    parser.add_argument(
        "--print-env",
        action="store_true",
        help="print lines of shell that have a job's Python observed, for any scheduler's script",
    )
    parser.add_argument(
        "--task-prolog",
        action="store_true",
        help="with --print-env: as lines of a Slurm TaskProlog, for users who set HPCNCF_OBSERVE=1",
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="SBATCH",
        help="sbatch's options, the script and its arguments, as for sbatch",
    )


def run(args: argparse.Namespace) -> int:
    import shutil
    import subprocess

    from hpcncf.launch.sbatch_wrapper import environment_lines, parse_request, prepare

    if args.task_prolog and not args.print_env:
        raise UsageError("sbatch: --task-prolog is a form of --print-env: give both")
    if args.print_env:
        if args.command not in ([], ["--"]):
            raise UsageError("sbatch: --print-env prints lines of shell and submits nothing")
        print(environment_lines(args.results.resolve(), args.task_prolog), end="")
        return 0
    if shutil.which("sbatch") is None:
        raise UsageError(
            "sbatch: no sbatch on this machine; `hpcncf run -- COMMAND` observes a command here"
        )
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    request = parse_request(words)
    stdin = None
    if request.script is None and request.wrap is None:
        if sys.stdin.isatty():
            raise UsageError("sbatch: no script given, as in: hpcncf sbatch job.sh")
        stdin = sys.stdin.buffer.read()
    options = ["--no-probe"] if args.no_probe else []
    options += ["--no-early"] if args.no_early else []
    options += [] if args.early is None else [f"--early={args.early:g}"]
    prepared = prepare(request, args.results.resolve(), stdin, options)
    done = subprocess.run(["sbatch", *prepared.words], input=prepared.stdin, check=False)
    if done.returncode != 0 or "--test-only" in request.options:
        prepared.discard()
    return done.returncode
