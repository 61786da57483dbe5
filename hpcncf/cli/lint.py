"""`hpcncf lint`: find lines of a script that waste cores."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from hpcncf.errors import HpcncfError, UsageError, printable
from hpcncf.text import pluralize

if TYPE_CHECKING:
    from hpcncf.batch.script import BatchScript
    from hpcncf.lint.rules import Complaint, ProgramContext

EPILOG = """\
Runs nothing and asks no scheduler. Batch scripts of Slurm, LSF, PBS and Grid Engine are known by
their directives, whatever they are called. Of a folder, *.py and shell scripts are read.
--fix prints the corrected lines as a diff: hpcncf lint --fix job.sh | patch job.sh
Exit code 1: findings, notes aside; 2: a file cannot be read.
example: hpcncf lint train.py job.sbatch
"""
PYTHON_SUFFIXES: Final = (".py", ".pyw")
SHELL_SUFFIXES: Final = (
    ".sh", ".bash", ".sbatch", ".slurm", ".batch", ".job", ".lsf", ".bsub", ".pbs", ".qsub", ".sge",
)  # fmt: skip
LARGEST_PYTHON_BYTES: Final = 1_000_000
# Slurm's own limit (max_script_size); nobody writes more by hand for the others.
LARGEST_SCRIPT_BYTES: Final = 4_000_000
THREADS: Final = re.compile("num_threads|NUM_THREADS|num_workers")
Kind = Literal["python", "batch", "shell", "python batch"]


@dataclass
class Source:
    """A file to lint, with its text, its kind and the complaints about it."""

    path: Path
    text: str
    kind: Kind
    script: BatchScript | None = None
    complaints: list[Complaint] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help="a file or a folder")
    parser.add_argument(
        "--cores",
        metavar="N",
        type=int,
        help="cores that a rank will have; else those that a batch script among FILEs asks for",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--fix", action="store_true", help="print the corrected lines as a unified diff"
    )
    output.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    if args.cores is not None and args.cores < 1:
        raise UsageError(f"--cores {args.cores}: expected at least 1")
    sources: list[Source] = []
    unread: list[str] = []
    for path in _files(args.files):
        try:
            sources.append(_read(path))
        except UsageError as error:
            unread.append(str(error))
    program = _program(sources, args.cores)
    linted = frozenset(each.path.resolve() for each in sources if "python" in each.kind)
    for source in sources:
        try:
            source.complaints = _complaints(source, program, linted)
        except HpcncfError as error:
            unread.append(f"{source.path}: {error}")
        if source.script is not None and source.script.is_cut:
            unread.append(f"{source.path}: too long: only its first commands were read")
    if unread and not sources:
        raise UsageError("\n".join(unread))
    found = [each for source in sources for each in source.complaints]
    notes = sum(each.level == "note" for each in found)
    count = len(found) - notes
    if args.json:
        from hpcncf.cli.output import print_json

        rows = [
            {"file": str(source.path), "level": each.level} | asdict(each)
            for source in sources
            for each in source.complaints
        ]
        for row in rows:
            del row["is_note"]  # said by the level
        print_json("lint", {"findings": rows, "not_read": unread})
    elif args.fix:
        _print_diffs(sources)
    else:
        _print_complaints(sources)
        also = f", {pluralize(notes, 'note')}" if notes else ""
        print(f"{pluralize(len(sources), 'file')} read: {count or 'nothing'} found{also}")
        if program.cores is None and any(
            THREADS.search(source.text) for source in sources if source.kind == "python"
        ):
            print("Threads and workers were not compared with cores: give them by --cores N")
    for problem in unread:
        print(f"hpcncf: {printable(problem)}", file=sys.stderr)
    return 2 if unread else 1 if count else 0


def _files(given: Sequence[Path]) -> Iterator[Path]:
    for path in given:
        if not path.is_dir():
            yield path
            continue
        inside = [
            file
            for file in path.rglob("*")
            if file.suffix in PYTHON_SUFFIXES + SHELL_SUFFIXES
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
            and file.is_file()
        ]
        if not inside:
            raise UsageError(f"{path}: no file in it ends in .py, {', '.join(SHELL_SUFFIXES)}")
        yield from sorted(inside)


def _read(path: Path) -> Source:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_SCRIPT_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        if len(data) > LARGEST_SCRIPT_BYTES:
            raise UsageError(f"{path}: more than 4 MB are no script") from None
        raise UsageError(f"{path}: not text in UTF-8: {error.reason}") from None
    kind = _kind(path, text)
    if len(data) > LARGEST_SCRIPT_BYTES:
        raise UsageError(f"{path}: more than 4 MB, which Slurm refuses as a batch script")
    if "python" in kind and len(data) > LARGEST_PYTHON_BYTES:
        raise UsageError(f"{path}: {len(data):,} bytes are no script written by hand")
    return Source(path, text, kind)


def _kind(path: Path, text: str) -> Kind:
    """Classify a file by its directives and `#!` line, else by its suffix."""
    from hpcncf.batch.script import is_batch_script, is_shell_script

    first = text.partition("\n")[0]
    is_batch = is_batch_script(text)
    if first.startswith("#!") and "python" in first:
        return "python batch" if is_batch else "python"
    if is_shell_script(text):
        return "batch" if is_batch else "shell"
    # A program without a `#!` line may hold a batch script in a string.
    if path.suffix in PYTHON_SUFFIXES:
        return "python"
    if is_batch:
        return "batch"
    return "shell" if path.suffix in SHELL_SUFFIXES else "python"


def _program(sources: Sequence[Source], cores: int | None) -> ProgramContext:
    """Facts about the linted programs that their batch scripts reveal, such as the cores."""
    from hpcncf.batch.script import read_batch_script
    from hpcncf.lint.rules import ProgramContext

    requests = []
    for source in sources:
        if source.kind != "python":
            source.script = read_batch_script(source.text)
            if source.script.scheduler is not None:
                requests.append(source.script.request)
    asked = {each.cores for each in requests}
    return ProgramContext(
        cores=cores or (asked.pop() if len(asked) == 1 else None),
        sets_epoch=any("set_epoch(" in source.text for source in sources),
        in_array=any(each.array is not None for each in requests),
    )


def _complaints(
    source: Source, program: ProgramContext, linted: frozenset[Path]
) -> list[Complaint]:
    found: list[Complaint] = []
    if source.script is not None:
        from hpcncf.lint.batch_script import check_script
        from hpcncf.lint.program_facts import program_reader

        found += check_script(
            source.script, program_reader(source.path.parent, Path(), linted=linted)
        )
    if "python" in source.kind:
        from hpcncf.lint.python_script import check_python

        found += check_python(source.text, program)
    return sorted(found)


def _print_complaints(sources: Sequence[Source]) -> None:
    for source in sources:
        for each in source.complaints:
            mark = "note: " if each.level == "note" else ""
            print(printable(f"{source.path}:{each.line}: {mark}{each.rule}: {each.message}"))
            for edit in each.edits:
                for line in edit.new:
                    print(printable(f"    {line}"))


def _print_diffs(sources: Sequence[Source]) -> None:
    """Print unified diffs; complaints without an edit go to standard error."""
    from hpcncf.batch.edits import Edit, unified_diff

    for source in sources:
        edits = [
            Edit(edit.line, edit.new, each.rule, edit.inserts)
            for each in source.complaints
            for edit in each.edits
        ]
        sys.stdout.write(unified_diff(str(source.path), source.text, edits))
        for each in source.complaints:
            if not each.edits:
                left = f"{source.path}:{each.line}: {each.rule}: {each.message}"
                print(f"hpcncf: {printable(left)}", file=sys.stderr)
