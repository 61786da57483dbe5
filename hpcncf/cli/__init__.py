"""The command line: one file a verb. The only code that prints or exits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

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
    "run",
    "train",
    "doctor",
    "completion",
)

EPILOG = """\
exit codes: 0 done; 1 something failed; 2 the request is wrong; 3 not all runs are complete
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
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
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
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except HpcncfError as error:
        print(f"hpcncf: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:  # `hpcncf status | head`
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return 130
