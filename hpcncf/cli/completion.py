"""`hpcncf completion`: a script that lets the shell complete verbs and options."""

from __future__ import annotations

import argparse

HELP = "print a script that completes hpcncf in your shell"
EPILOG = """\
bash: hpcncf completion bash > ~/.local/share/bash-completion/completions/hpcncf
zsh:  hpcncf completion zsh > a folder of your fpath, as the file _hpcncf
tcsh: hpcncf completion tcsh, sourced from ~/.tcshrc
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "tcsh"])


def run(args: argparse.Namespace) -> int:
    import shtab

    from hpcncf import cli

    print(shtab.complete(cli.parser(), shell=args.shell))
    return 0
