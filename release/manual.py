"""Man pages and shell completions, made from the command line itself when a wheel is built."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPLETIONS = {
    "bash": "share/bash-completion/completions/hpcncf",
    "zsh": "share/zsh/site-functions/_hpcncf",
    "fish": "share/fish/vendor_completions.d/hpcncf.fish",
}


def write_shared_files(folder: Path) -> list[tuple[str, list[str]]]:
    """Write man pages and completions below the folder; setuptools' `data_files` of them."""
    sys.path.insert(0, str(ROOT))
    try:
        from hpcncf import __version__, cli
    finally:
        sys.path.remove(str(ROOT))
    top = cli.parser()
    commands = next(
        action for action in top._actions if isinstance(action, argparse._SubParsersAction)
    )
    others = [f"hpcncf-{verb}" for verb in cli.VERBS]
    files = {"share/man/man1/hpcncf.1": _top_page(__version__, others)}
    for verb in cli.VERBS:
        page = man_page(f"hpcncf {verb}", commands.choices[verb], __version__)
        files[f"share/man/man1/hpcncf-{verb}.1"] = page
    files |= {
        path: cli.completion_script(cli.parser(), shell) for shell, path in COMPLETIONS.items()
    }
    grouped: dict[str, list[str]] = {}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        grouped.setdefault(str(Path(name).parent), []).append(str(path))
    return list(grouped.items())


def man_page(name: str, parser: argparse.ArgumentParser, version: str) -> str:
    """One command's page in man(7)'s macros: what `--help` prints, in sections."""
    parser.prog = name
    lines = [
        _heading(name.replace(" ", "-"), version),
        ".SH NAME",
        f"{_plain(name.replace(' ', '-'))} \\- {_plain(parser.description or '')}",
        ".SH SYNOPSIS",
        ".nf",
        *_usage(parser),
        ".fi",
    ]
    lines += _arguments(parser, ".SH")
    for command in _commands(parser):
        lines += [f".SH {_plain(command.prog.upper())}", ".nf", *_usage(command), ".fi"]
        lines += _arguments(command, ".SS")
    if parser.epilog:
        epilog = parser.epilog.replace("%(prog)s", name)
        lines += [".SH NOTES", ".nf", *map(_plain, epilog.splitlines()), ".fi"]
    lines += [".SH SEE ALSO", ".BR hpcncf (1)"]
    return "\n".join(lines) + "\n"


def _usage(parser: argparse.ArgumentParser) -> list[str]:
    # Each line begins with `usage: `, or is indented by as much.
    lines = parser.format_usage().rstrip().splitlines()
    return [_plain(line[len("usage: ") :]) for line in lines]


def _arguments(parser: argparse.ArgumentParser, heading: str) -> list[str]:
    lines = []
    for group in parser._action_groups:
        actions = [each for each in group._group_actions if each.help != argparse.SUPPRESS]
        if not actions:
            continue
        lines.append(f"{heading} {_plain((group.title or 'arguments').upper())}")
        formatter = parser._get_formatter()
        for action in actions:
            lines += [
                ".TP",
                f".B {_plain(formatter._format_action_invocation(action))}",
                _plain(formatter._expand_help(action) if action.help else ""),
            ]
    return lines


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands of a command, and theirs, that take arguments: `data prepare csv`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                inner = list(_commands(command))
                yield from inner or [command]


def _top_page(version: str, others: list[str]) -> str:
    from hpcncf import cli

    lines = [
        _heading("hpcncf", version),
        ".SH NAME",
        f"hpcncf \\- {_plain(cli.DESCRIPTION)}",
        ".SH SYNOPSIS",
        ".B hpcncf",
        "COMMAND ...",
        ".SH COMMANDS",
        ".nf",
        *map(_plain, cli.parser().format_help().splitlines()[2:]),
        ".fi",
        ".SH SEE ALSO",
        ", ".join(f"\\fB{_plain(name)}\\fR(1)" for name in others),
    ]
    return "\n".join(lines) + "\n"


def _heading(name: str, version: str) -> str:
    # Left-aligned and without hyphenation: words are copied from it.
    return f'.TH {name.upper()} 1 "" "hpcncf {version}" "User Commands"\n.ad l\n.nh'


def _plain(text: str) -> str:
    """Text that no man macro changes: hyphens to copy, no line that begins a request. A list
    without spaces may break behind its commas."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    escaped = re.sub(r",(?=\S)", r",\\:", escaped)
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
