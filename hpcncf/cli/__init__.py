"""The command line: one file per command. The only code that prints or exits."""

from __future__ import annotations

import argparse
import errno
import gc
import io
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import NoReturn

from hpcncf import __version__, removed
from hpcncf.errors import HpcncfError, UsageError, did_you_mean, printable

# Each command is a module with add_arguments(parser) and run(args) -> exit code. It imports what is
# slow (pydantic, pandas, torch) inside run, and is itself imported only if it is the command.
GROUPS: dict[str, dict[str, str]] = {
    "run": {
        "run": "Measure any command.",
        "sbatch": "Submit a batch script and observe its job.",
        "data": "Prepare or describe a data set.",
        "plan": "Show the runs of a job file.",
        "submit": "Submit the runs of a job file.",
        "retry": "Submit failed and missing runs again.",
        "cancel": "Cancel queued and running runs.",
    },
    "look": {
        "attach": "Watch a job or program that runs now.",
        "status": "Show running, pending and failed runs.",
        "logs": "Print the output of a run.",
        "collect": "Gather the records into tables.",
        "report": "Write the report and the next request.",
        "diagnose": "Name the cause of wasted time or cores.",
        "compare": "Test whether two runs or studies differ.",
    },
    "improve": {
        "tune": "Find the best configuration within a budget.",
        "explain": "Interpret the summary of seff, sacct, LSF, PBS.",
        "lint": "Find lines of a script that waste cores.",
        "apply": "Write a job's needs into its batch script.",
        "doctor": "Check this machine and installation.",
    },
}
VERBS = tuple(verb for group in GROUPS.values() for verb in group)
# Arguments of these names take a folder; every other path may be a file.
FOLDERS = {"DIR", "FOLDER", "RESULTS", "RUN|RESULTS"}
SHELLS = ("bash", "zsh", "fish", "tcsh")
DESCRIPTION = "Measure why a training job wastes its cores, and what to request instead."
EXIT_CODES = """\
exit codes:
  0  success
  1  error
  2  wrong request: arguments, job file, or results folder
  3  incomplete: runs are not complete or not all submitted, the budget is spent,
     or repeats are too few to be sure
  4  slower or worse than before (compare --threshold)
`run` exits with the code of its command; `lint` with 1 if it finds something."""
FIRST = "To start: hpcncf run -- python train.py"


class _ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _print_json_error(sys.argv[1:], f"{self.prog}: {message}", 2)
        super().error(message)


class _Top(_ArgumentParser):
    """Top-level parser, whose help lists the commands in groups."""

    def format_help(self) -> str:
        lines = [self.format_usage().strip(), "", DESCRIPTION]
        for group, verbs in GROUPS.items():
            lines += ["", f"{group}:"]
            lines += [f"  {verb:<10}{meaning}" for verb, meaning in verbs.items()]
        options = [
            "options:",
            "  -h, --help, --version",
            f"  --print-completion {{{','.join(SHELLS)}}}",
            "  --print-skill         (for coding agents: the loop of measuring and changing)",
        ]
        return "\n".join([*lines, "", *options, "", EXIT_CODES, "", FIRST, ""])


def parser(commands: Sequence[str] = VERBS) -> argparse.ArgumentParser:
    """Build the argument parser with the given commands."""
    top = _Top(prog="hpcncf", usage="hpcncf [-h] COMMAND ...", description=DESCRIPTION)
    top.add_argument("--version", action="version", version=f"hpcncf {__version__}")
    top.add_argument("--print-completion", choices=SHELLS, help="print a completion script")
    top.add_argument("--print-skill", action="store_true", help="print a skill for coding agents")
    verbs = top.add_subparsers(
        dest="verb", metavar="COMMAND", prog="hpcncf", parser_class=_ArgumentParser
    )
    meanings = {verb: text for group in GROUPS.values() for verb, text in group.items()}
    for name in commands:
        module = import_module(f"hpcncf.cli.{name}")
        verb = verbs.add_parser(
            name,
            description=meanings[name],
            help=meanings[name],
            epilog=getattr(module, "EPILOG", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    _open_streams()
    words = sys.argv[1:] if argv is None else argv
    try:
        top = _parser_for(words)
        args, unknown = top.parse_known_args(guard_options(words))
        if unknown:
            raise UsageError(_describe_unknown(unknown, args.verb, top))
        if args.print_completion:
            print(completion_script(top, args.print_completion))
            return 0
        if args.print_skill:
            print(read_skill(), end="")
            return 0
        if args.verb is None:
            top.print_help()
            return 0
        _check_folder()
        if args.verb in GROUPS["look"]:  # thousands of records, which hold no cycles
            gc.set_threshold(200_000)
        args.words = list(words)
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except HpcncfError as error:
        print(f"hpcncf: {printable(str(error))}", file=sys.stderr)
        code = 2 if isinstance(error, UsageError) else 1
        _print_json_error(words, str(error), code)
        return code
    except OSError as error:
        return _print_os_error(error, words)


def guard_options(words: Sequence[str]) -> list[str]:
    """Insert `--` before the first word of `hpcncf sbatch` that is meant for sbatch."""
    if list(words[:1]) != ["sbatch"]:
        return list(words)
    at = 1
    while at < len(words) and words[at].partition("=")[0] in (
        "--results",
        "--no-probe",
        "--early",
        "--no-early",
        "--print-env",
        "--task-prolog",
        "--help",
        "-h",
    ):
        at += 2 if words[at] in ("--results", "--early") else 1
    return [*words[:at], "--", *words[at:]]


def _parser_for(words: Sequence[str]) -> argparse.ArgumentParser:
    first = next((word for word in words if not word.startswith("-")), "")
    if first in removed.VERBS:
        raise UsageError(removed.describe_removed_verb(first))
    if gone := removed.find_removed_option(words):
        raise UsageError(gone)
    if words and words[0] in VERBS:
        return parser([first])
    if words and not words[0].startswith("-"):
        close = did_you_mean(words[0], [*VERBS, *removed.VERBS])
        raise UsageError(f"{words[0]}: no such command.{close} `hpcncf --help` lists them.")
    alone: tuple[list[str], ...] = ([], ["-h"], ["--help"], ["--version"], ["--print-skill"])
    return parser([]) if list(words) in alone else parser()


def _describe_unknown(words: Sequence[str], verb: str | None, top: argparse.ArgumentParser) -> str:
    """Message for words that a command does not take, with a suggestion."""
    command = f"hpcncf {verb}" if verb else "hpcncf"
    options = [option for action in _actions(top) for option in action.option_strings]
    first = next((word for word in words if word.startswith("-")), "")
    close = did_you_mean(first.partition("=")[0], options) if first else ""
    return (
        f"{f'{verb}: ' if verb else ''}unknown arguments: {' '.join(words)}.{close} "
        f"`{command} --help` lists the known ones."
    )


def completion_script(top: argparse.ArgumentParser, shell: str) -> str:
    """Generate the completion script of a shell, for commands, options and paths."""
    import shtab

    for action in _actions(top):
        if action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif getattr(action.type, "__name__", "") == "Path" or action.nargs == argparse.REMAINDER:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(top, shell=shell)


def read_skill() -> str:
    """Read the text that tells a coding agent how to work with hpcncf."""
    from importlib.resources import files

    return (files("hpcncf") / "SKILL.md").read_text(encoding="utf-8")


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield every argument of the parser and of its commands."""
    for action in parser._actions:  # argparse has no public way, and shtab reads the same
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from _actions(verb)


def _print_json_error(argv: Sequence[str], error: str, code: int) -> None:
    """Print an error as JSON if the command was called with `--json`.

    `run` is excluded: its words are those of its command, and its --json takes a file.
    """
    if "--json" in argv and argv[0] != "run":
        from hpcncf.cli.output import print_json

        print_json("error", {"error": error, "exit_code": code})


def _open_streams() -> None:
    """Open missing standard streams, and escape characters that the terminal lacks.

    Started without one of the three streams, the first file opened would take its place: a
    record would take what a command prints.
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
        os.getcwd()  # noqa: PTH109 (`--help` starts without pathlib)
    except OSError as error:
        raise UsageError(
            f"the current folder: {error.strerror}; it was removed or may not be read: "
            "change to another and try again"
        ) from None


def _print_os_error(error: OSError, argv: Sequence[str]) -> int:
    """Report an OSError that was not caught, such as a folder without permission.

    Returns the exit code.

    `hpcncf status | head` ends in silence, a full disk under `hpcncf status > FILE` does not.
    Any other OSError that got here is our bug.
    """
    if error.filename is not None and error.errno in (errno.EACCES, errno.EPERM, errno.ESTALE):
        message = f"{error.filename}: cannot be used: {error.strerror}"
        print(f"hpcncf: {message}", file=sys.stderr)
        _print_json_error(argv, message, 1)
        return 1
    if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
        raise error
    if error.errno != errno.EPIPE:
        print(f"hpcncf: standard output: cannot be written: {error.strerror}", file=sys.stderr)
    # Python writes out at its end what is left, and would report it once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
