"""`hpcncf explain`: interpret a scheduler's summary."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcncf.errors import HpcncfError, UsageError

if TYPE_CHECKING:
    from hpcncf_analysis.explain.explain import Explanation, Reading

EPILOG = """\
Reads a file, a folder of Slurm's logs, or standard input (`-`, or no argument). Asks no scheduler.
example: seff 123456 | hpcncf explain
"""
# Summaries are short; of a log the end is what the scheduler wrote.
MOST_BYTES = 4 * 2**20
TAIL_BYTES = 64 * 1024
MOST_FILES = 2000
SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="-",
        help="a file, a folder of logs, the text in quotes, or - (default: standard input)",
    )
    parser.add_argument(
        "--cores", type=int, metavar="N", help="cores the job had, where the text does not say"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    if args.cores is not None and args.cores < 1:
        raise UsageError(f"--cores: expected 1 or more, came {args.cores}")
    path = Path(args.file)
    if args.file != "-" and _is_ours(path):
        return _ours(path, args.json)
    found = _read_source(args.file)
    if not found.jobs:
        raise UsageError(_nothing(args.file, found))
    explanations = _explained(found, args.cores)
    if args.json:
        print(json.dumps(_plain(explanations, found.problems), indent=1, allow_nan=False))
    else:
        _show(explanations)
    for problem in found.problems:
        print(f"not understood: {problem}", file=sys.stderr)
    return 0


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, a zero byte
        return False


def _is_ours(path: Path) -> bool:
    """A results folder, or a record of one rank."""
    if not _is_there(path):
        return False
    record = path.name.startswith("rank-") and path.suffix == ".json" and path.is_file()
    return record or (path / "plan.json").exists()


def _ours(path: Path, as_json: bool) -> int:
    command = f"hpcncf diagnose {shlex.quote(str(path))}"
    if as_json:
        print(json.dumps({"jobs": [], "not_understood": [], "command": command}, indent=1))
    else:
        print(f"{path}: hpcncf's own records contain more than any summary:\n  {command}")
    return 0


def _read_source(name: str) -> Reading:
    from hpcncf_analysis.explain.explain import read_log_folder, read_text
    from hpcncf_analysis.explain.parsers import job_id_from_name

    if name == "-":
        return read_text(sys.stdin.buffer.read(MOST_BYTES).decode(errors="replace"))
    path = Path(name)
    if not _is_there(path):
        if (found := read_text(name)).jobs:
            return found  # the text itself, in quotes
        raise UsageError(f"{name[:80]}: no such file or folder; - reads standard input")
    if path.is_dir():
        return read_log_folder({each.name: _tail(each) for each in _logs(path)})
    text = _tail(path, MOST_BYTES) if path.is_file() else _stream(path)
    found = read_text(text)
    return found if found.jobs or not job_id_from_name(path.name) else read_log_folder({name: text})


def _logs(folder: Path) -> list[Path]:
    """The newest, where there are very many."""
    try:
        files = [path for path in folder.iterdir() if path.is_file()]
    except OSError as error:
        raise HpcncfError(f"{folder}: cannot be read: {error.strerror}") from None
    files.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return sorted(files[:MOST_FILES])


def _stream(path: Path) -> str:
    """`hpcncf explain <(seff 123)`: a pipe has no end to look from."""
    try:
        with path.open("rb") as stream:
            return stream.read(MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise HpcncfError(f"{path}: cannot be read: {error.strerror}") from None


def _tail(path: Path, most: int = TAIL_BYTES) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - most, 0))
            return file.read(most).decode(errors="replace")
    except OSError as error:
        raise HpcncfError(f"{path}: cannot be read: {error.strerror}") from None


def _nothing(name: str, found: Reading) -> str:
    from hpcncf_analysis.explain.explain import POSSIBLE

    where = "standard input" if name == "-" else name
    why = f": {'; '.join(found.problems)}" if found.problems else ""
    return f"{where}: no summary of a job in it{why}; understood are {POSSIBLE}"


def _explained(found: Reading, cores: int | None) -> list[Explanation]:
    from dataclasses import replace

    from hpcncf_analysis.explain.explain import explain

    jobs = [replace(job, cores=cores) if cores and not job.cores else job for job in found.jobs]
    return [explain(job) for job in jobs]


def _plain(explanations: Sequence[Explanation], problems: Sequence[str]) -> dict[str, Any]:
    from hpcncf_analysis.explain.explain import command_for

    return {
        "jobs": [each.plain() for each in explanations],
        "not_understood": list(problems),
        "command": command_for(explanations)[0],
    }


def _show(explanations: Sequence[Explanation]) -> None:
    """Each job; of very many a table, and the one that idled most."""
    from hpcncf.cli.output import filled
    from hpcncf_analysis.explain.explain import command_for

    shown = explanations
    if len(explanations) > SHOWN:
        _table(explanations)
        shown = [max(explanations, key=lambda each: each.job.core_hours_idle or 0.0)]
        print("\nthe one that idled most:")
    for number, each in enumerate(shown):
        print("\n" * (number > 0) + _title(each))
        _list("what follows", each.follows)
        _list("what stays open", each.unknown)
    command, why = command_for(explanations)
    if command:
        print(f"  what would answer it\n    {command}")
        print(filled(why, indent="    "))


def _title(each: Explanation) -> str:
    job = each.job
    named = f"{job.source}, job {job.id}" if job.id else job.source
    return f"{named}, {job.state_name}" if job.state else named


def _list(title: str, lines: Sequence[str]) -> None:
    from hpcncf.cli.output import filled

    if lines:
        print(f"  {title}")
    for line in lines:
        print(filled(line, indent="    "))


def _table(explanations: Sequence[Explanation]) -> None:
    from hpcncf.cli.output import table_layout
    from hpcncf_analysis.formatting import (
        format_core_time,
        format_cores,
        format_hundredths,
        format_percent,
    )

    rows = [
        [
            each.job.id,
            each.job.state_name,
            format_cores(each.job.cores),
            format_hundredths(each.job.cores_used),
            format_percent(each.job.efficiency),
            format_percent(each.job.memory_efficiency),
            format_percent(each.job.time_efficiency),
            format_core_time(each.job.core_hours_idle),
        ]
        for each in explanations
    ]
    heads = ["job", "state", "cores", "used", "CPU", "memory", "time", "idle"]
    print(table_layout(heads, rows))
    known = [each.job.core_hours_idle for each in explanations]
    idle = [hours for hours in known if hours is not None]
    if idle:
        print(f"\n{format_core_time(sum(idle))} reserved and not used, all together")
