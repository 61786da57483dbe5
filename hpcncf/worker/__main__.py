"""Run one rank: `python -m hpcncf.worker JOB.yaml --run ID`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcncf.errors import HpcncfError, UsageError


def add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command-line arguments that choose a run and its job file or results folder."""
    add = parser.add_argument
    add("source", type=Path, help="a job file, or a results folder with a plan")
    # torchrun on Python 3.11 refuses `--run`, ours or not: it begins two of its own options.
    add("--run", "--run-id", dest="run_id", metavar="ID", help="which run; its first letters do")
    add_setting_argument(parser, "override a setting of the job file: -s training.epochs=1")
    add("--results", type=Path, metavar="DIR", help="default: results/<the job's name>")
    add("--again", action="store_true", help="train even if the run is complete already")


def add_setting_argument(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add the option `-s KEY=VALUE`, which may be repeated, with this help text."""
    parser.add_argument(
        "-s", dest="settings", metavar="KEY=VALUE", action="append", default=[], help=meaning
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hpcncf.worker", description=__doc__)
    add_rank_arguments(parser)
    over = "attempts up to this number are known to have ended"
    parser.add_argument("--over", type=int, metavar="N", default=0, help=over)
    args = parser.parse_args(argv)
    # `plan --help` uses the arguments above: a login node must not load what a rank needs.
    from hpcncf.launcher.signals import hold, ignore
    from hpcncf.monitor.cgroup import in_slurm_step
    from hpcncf.worker.rank import from_arguments
    from hpcncf.worker.task import bind

    bind()
    if in_slurm_step():
        hold()
    try:
        code = from_arguments(args, args.over)[0]
    except HpcncfError as error:
        sys.stderr.write(f"hpcncf: {error}\n")
        return 2 if isinstance(error, UsageError) else 1
    if in_slurm_step():  # in front of a terminal, Ctrl-C means it
        ignore()
    return code


if __name__ == "__main__":
    # Until the rank listens itself, Ctrl-C ends it as SIGTERM does, without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # see local.processes
    from hpcncf.worker.process_exit import exit_now

    exit_now(main())
