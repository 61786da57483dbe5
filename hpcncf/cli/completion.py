"""`hpcncf --print-completion SHELL`: complete commands, options and paths in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Arguments of these names take a folder; every other path may be a file.
FOLDERS: Final = {"DIR", "FOLDER", "RESULTS", "RUN|RESULTS"}


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of the parser for one of `cli.SHELLS`."""
    import shtab

    for action in _actions(parser):
        if action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.type is Path or action.nargs == argparse.REMAINDER:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell=shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of the parser and of its commands."""
    for action in parser._actions:  # argparse has no public way, and shtab reads the same
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from _actions(verb)
