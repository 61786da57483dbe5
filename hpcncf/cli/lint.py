"""`hpcncf lint`: find lines of a script that waste cores."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.errors import HpcncfError, UsageError, plural, printable

if TYPE_CHECKING:
    from hpcncf.lint.batch_script import Complaint

EPILOG = """\
Runs nothing. Files with #SBATCH lines are batch scripts.
Of a folder, *.py, *.sh and *.sbatch are read.
Exit code 1: findings; 2: a file cannot be read.
example: hpcncf lint train.py job.sbatch
"""
OURS = (".py", ".sh", ".sbatch", ".slurm")
LARGEST_BYTES = 2_000_000
THREADS = re.compile("num_threads|NUM_THREADS|num_workers")


@dataclass(frozen=True)
class _Around:
    """Facts about a program from its other files."""

    cores: int | None
    epoch_is_set: bool
    in_array: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help="a file or a folder")
    parser.add_argument(
        "--cores",
        metavar="N",
        type=int,
        help="cores that a rank will have; else those that an sbatch file among FILEs asks for",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    from hpcncf.lint.batch_script import is_array_script

    if args.cores is not None and args.cores < 1:
        raise UsageError(f"--cores {args.cores}: expected at least 1")
    texts: dict[Path, str] = {}
    found: list[tuple[Path, Complaint]] = []
    unread: list[str] = []
    for path in _files(args.files):
        with _goes_on(unread):
            texts[path] = _text(path)
    around = _Around(
        args.cores or _cores_asked(list(texts.values())),
        any("set_epoch(" in text for text in texts.values()),
        any(map(is_array_script, texts.values())),
    )
    for path, text in texts.items():
        with _goes_on(unread):
            found += [(path, each) for each in _complaints(path, text, around)]
    if unread and not texts:
        raise UsageError("\n".join(unread))
    if args.json:
        print(json.dumps([{"file": str(path)} | vars(each) for path, each in found], indent=1))
    else:
        for path, each in found:
            print(f"{path}:{each.line}: {each.rule}: {each.message}")
        print(f"{plural(len(texts), 'file')} read: {len(found) or 'nothing'} found")
        if around.cores is None and any(map(THREADS.search, texts.values())):
            print("Threads and workers were not compared with cores: give them by --cores N")
    for problem in unread:
        print(f"hpcncf: {printable(problem)}", file=sys.stderr)
    return 2 if unread else 1 if found else 0


@contextmanager
def _goes_on(unread: list[str]) -> Iterator[None]:
    """A file that cannot be read keeps no other from being read."""
    try:
        yield
    except UsageError as error:
        unread.append(str(error))


def _files(given: Sequence[Path]) -> Iterator[Path]:
    for path in given:
        if not path.is_dir():
            yield path
            continue
        inside = [
            file
            for file in path.rglob("*")
            if file.suffix in OURS and not _hidden(file.relative_to(path)) and file.is_file()
        ]
        if not inside:
            raise UsageError(f"{path}: no file in it ends in {', '.join(OURS)}")
        yield from sorted(inside)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UsageError(f"{path}: {path.stat().st_size} bytes are no script")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not text in UTF-8: {error.reason}") from None


def _cores_asked(texts: Sequence[str]) -> int | None:
    """Where all sbatch scripts ask for the same."""
    from hpcncf.lint import batch_script

    asked = {
        batch_script.parse_options(text).cores
        for text in texts
        if batch_script.is_batch_script(text)
    }
    return asked.pop() if len(asked) == 1 else None


def _complaints(path: Path, text: str, around: _Around) -> list[Complaint]:
    from hpcncf.lint.batch_script import check_batch_script, check_launchers, is_batch_script
    from hpcncf.lint.python_script import check_python

    if is_batch_script(text) and path.suffix != ".py":
        return check_batch_script(text)
    if path.suffix in OURS[1:]:
        return check_launchers(text)  # a shell script that is not for sbatch
    try:
        return check_python(text, around.cores, around.epoch_is_set, around.in_array)
    except HpcncfError as error:
        raise UsageError(f"{path}: {error}") from None
