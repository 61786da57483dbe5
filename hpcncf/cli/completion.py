"""`hpcncf completion`: a script that lets the shell complete verbs, options and paths."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HELP = "print a script that completes hpcncf in your shell"
EPILOG = """\
bash: hpcncf completion bash > ~/.local/share/bash-completion/completions/hpcncf
zsh:  hpcncf completion zsh > a folder of your fpath, as the file _hpcncf
tcsh: hpcncf completion tcsh, sourced from ~/.tcshrc
"""
# What arguments that take a folder are called; every other path may be a file.
FOLDERS: Final = {"DIR", "FOLDER", "RESULTS", "RUN|RESULTS"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "tcsh"])


def run(args: argparse.Namespace) -> int:
    import shtab

    from hpcncf import cli

    parser = cli.parser()
    for action in _actions(parser):
        if action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.type is Path or action.nargs == argparse.REMAINDER:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of the parser and of the verbs below it."""
    for action in parser._actions:  # argparse has no public way, and shtab reads the same
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from _actions(verb)
