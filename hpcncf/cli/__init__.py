"""The command line: one file a verb. The only code that prints or exits."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from hpcncf import __version__
from hpcncf.errors import HpcncfError, UsageError

# In the order of a user's day. Each module has HELP, add_arguments(parser), run(args) -> exit code
# and imports what is slow (pydantic, pandas, torch) inside run: `--help` must answer at once.
VERBS = (
    "data",
    "plan",
    "submit",
    "status",
    "logs",
    "cancel",
    "retry",
    "collect",
    "report",
    "diagnose",
    "explain",
    "compare",
    "predict",
    "tune",
    "run",
    "train",
    "bench",
    "lint",
    "doctor",
    "completion",
)

EPILOG = """\
exit codes: 0 done; 1 something failed; 2 the request is wrong; 3 not all runs are complete;
            4 slower or worse than before (compare)
a first look: hpcncf run -- python train.py     what did its cores really do?
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="hpcncf",
        description="Measure why a training job wastes its cores, and what to ask for instead.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"hpcncf {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB")
    for name in VERBS:
        module = import_module(f"hpcncf.cli.{name}")
        verb = verbs.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=getattr(module, "EPILOG", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    _open_streams()
    try:
        top = parser()
        args = top.parse_args(argv)
        if args.verb is None:
            top.print_help()
            return 0
        _check_folder()
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except HpcncfError as error:
        print(f"hpcncf: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except OSError as error:
        return _untold(error)
    except KeyboardInterrupt:
        return 130


def _open_streams() -> None:
    """Started without one of the three, the first file we open would become it: a record would
    take what a command prints. And a name that the terminal's encoding lacks is no reason to end.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_folder() -> None:
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"the current folder: {error.strerror}; it was removed or may not be read: "
            "change to another and try again"
        ) from None


def _untold(error: OSError) -> int:
    """What no reader or writer told: a folder that we may not look into, or our own output.

    `hpcncf status | head` ends in silence, a full disk under `hpcncf status > FILE` does not.
    Any other OSError that got here is our bug.
    """
    if error.filename is not None and error.errno in (errno.EACCES, errno.EPERM, errno.ESTALE):
        print(f"hpcncf: {error.filename}: cannot be used: {error.strerror}", file=sys.stderr)
        return 1
    if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
        raise error
    if error.errno != errno.EPIPE:
        print(f"hpcncf: standard output: cannot be written: {error.strerror}", file=sys.stderr)
    # Python writes out at its end what is left, and would tell of it once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
