"""`hpcncf explain`: interpret a scheduler's summary."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

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
    from hpcncf_analysis.explain.explain import POSSIBLE, command_for, explain

    if args.cores is not None and args.cores < 1:
        raise UsageError(f"--cores: expected 1 or more, came {args.cores}")
    found = _read(args.file)
    problems = found.problems
    if not found.jobs:
        where = "standard input" if args.file == "-" else args.file[:80]
        why = f": {'; '.join(problems)}" if problems else ""
        raise UsageError(f"{where}: no summary of a job in it{why}; understood are {POSSIBLE}")
    explanations = [explain(replace(job, cores=job.cores or args.cores)) for job in found.jobs]
    if args.json:
        plain = {
            "jobs": [each.plain() for each in explanations],
            "not_understood": list(problems),
            "command": command_for(explanations)[0],
        }
        print(json.dumps(plain, indent=1, allow_nan=False))
    else:
        _show(explanations)
    for problem in problems:
        print(f"not understood: {problem}", file=sys.stderr)
    return 0


def _read(name: str) -> Reading:
    """Of a file, a folder of logs, a pipe, or the text itself in quotes."""
    from hpcncf_analysis.explain.explain import POSSIBLE, read_log_folder, read_text
    from hpcncf_analysis.explain.parsers import job_id_from_name

    if name == "-":
        return read_text(sys.stdin.buffer.read(MOST_BYTES).decode(errors="replace"))
    path = Path(name)
    try:
        is_there = path.exists()
    except OSError:  # a name too long
        is_there = False
    if not is_there:
        found = read_text(name)
        if found.jobs or found.problems or "\n" in name:
            return found
        raise UsageError(
            f"{name[:80]}: no such file or folder, and no summary of a job; understood are "
            f"{POSSIBLE}"
        )
    is_record = path.name.startswith("rank-") and path.suffix == ".json"
    if is_record or (path / "plan.json").exists():
        raise UsageError(
            f"{name}: a record of hpcncf, which contains more than any summary. Read it with "
            f"`hpcncf diagnose {shlex.quote(name)}`."
        )
    try:
        if path.is_dir():
            logs = [each for each in path.iterdir() if each.is_file()]
            newest = sorted(logs, key=lambda each: each.stat().st_mtime)[-MOST_FILES:]
            return read_log_folder({each.name: _end_of(each, TAIL_BYTES) for each in newest})
        text = _end_of(path, MOST_BYTES)
    except OSError as error:
        raise HpcncfError(f"{name}: cannot be read: {error.strerror}") from None
    found = read_text(text)
    return found if found.jobs or not job_id_from_name(path.name) else read_log_folder({name: text})


def _end_of(path: Path, most: int) -> str:
    with path.open("rb") as file:
        if path.is_file():  # a pipe, as of `hpcncf explain <(seff 123)`, has no end to look from
            file.seek(max(path.stat().st_size - most, 0))
        return file.read(most).decode(errors="replace")


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
        job = each.job
        named = f"{job.source}, job {job.id}" if job.id else job.source
        state = f", {job.state_name}" if job.state else ""
        print("\n" * (number > 0) + named + state)
        _list("what follows", each.follows)
        _list("what stays open", each.unknown)
    command, why = command_for(explanations)
    if command:
        print(f"  what would answer it\n    {command}")
        print(filled(why, indent="    "))


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
