"""`hpcncf lint`: find lines of a script that waste cores."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.errors import HpcncfError, UsageError, plural, printable

if TYPE_CHECKING:
    from hpcncf.lint.python_script import Program
    from hpcncf.lint.rules import Complaint

EPILOG = """\
Runs nothing. Files with #SBATCH lines are batch scripts.
Of a folder, *.py, *.sh and *.sbatch are read.
Exit code 1: findings; 2: a file cannot be read.
example: hpcncf lint train.py job.sbatch
"""
OURS = (".py", ".sh", ".sbatch", ".slurm")
LARGEST_BYTES = 2_000_000
THREADS = re.compile("num_threads|NUM_THREADS|num_workers")


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
    from hpcncf.lint.batch_script import is_batch_script, parse_options
    from hpcncf.lint.python_script import Program

    if args.cores is not None and args.cores < 1:
        raise UsageError(f"--cores {args.cores}: expected at least 1")
    texts: dict[Path, str] = {}
    found: list[tuple[Path, Complaint]] = []
    unread: list[str] = []
    for path in _files(args.files):
        try:
            texts[path] = _text(path)
        except UsageError as error:
            unread.append(str(error))
    options = [parse_options(text) for text in texts.values() if is_batch_script(text)]
    asked = {each.cores for each in options}
    program = Program(
        cores=args.cores or (asked.pop() if len(asked) == 1 else None),
        sets_epoch=any("set_epoch(" in text for text in texts.values()),
        in_array=any("array" in each.values for each in options),
    )
    for path, text in texts.items():
        try:
            found += [(path, each) for each in _complaints(path, text, program)]
        except HpcncfError as error:
            unread.append(f"{path}: {error}")
    if unread and not texts:
        raise UsageError("\n".join(unread))
    if args.json:
        print(json.dumps([{"file": str(path)} | vars(each) for path, each in found], indent=1))
    else:
        for path, each in found:
            print(f"{path}:{each.line}: {each.rule}: {each.message}")
        print(f"{plural(len(texts), 'file')} read: {len(found) or 'nothing'} found")
        if program.cores is None and any(map(THREADS.search, texts.values())):
            print("Threads and workers were not compared with cores: give them by --cores N")
    for problem in unread:
        print(f"hpcncf: {printable(problem)}", file=sys.stderr)
    return 2 if unread else 1 if found else 0


def _files(given: Sequence[Path]) -> Iterator[Path]:
    for path in given:
        if not path.is_dir():
            yield path
            continue
        inside = [
            file
            for file in path.rglob("*")
            if file.suffix in OURS
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
            and file.is_file()
        ]
        if not inside:
            raise UsageError(f"{path}: no file in it ends in {', '.join(OURS)}")
        yield from sorted(inside)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UsageError(f"{path}: {path.stat().st_size} bytes are no script")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not text in UTF-8: {error.reason}") from None


def _complaints(path: Path, text: str, program: Program) -> list[Complaint]:
    from hpcncf.lint.batch_script import check_batch_script, check_launchers, is_batch_script
    from hpcncf.lint.python_script import check_python

    if is_batch_script(text) and path.suffix != ".py":
        return check_batch_script(text)
    if path.suffix in OURS[1:]:
        return check_launchers(text)  # a shell script that is not for sbatch
    return check_python(text, program)
