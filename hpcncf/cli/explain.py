"""`hpcncf explain`: interpret what a scheduler or its tools say of a job."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcncf.errors import HpcncfError, UsageError

if TYPE_CHECKING:
    from hpcncf.explain.conclude import Explanation
    from hpcncf.explain.fields import JobFields
    from hpcncf.explain.groups import JobGroup

EPILOG = """\
Reads a file, a folder of Slurm's logs, or standard input (`-`, or no argument); of a Slurm job id
it asks sacct, squeue, and sstat while the job runs. --since asks sacct for all jobs, and groups
them into workloads.
examples: seff 123456 | hpcncf explain
          hpcncf explain --since 7days
"""
# Summaries are short; of a log the end is what the scheduler wrote.
MOST_BYTES = 4 * 2**20
TAIL_BYTES = 64 * 1024
MOST_FILES = 2000
SHOWN = 5
MOST_ROWS = 100
POSSIBLE = (
    "what seff, jobstats, reportseff, sacct and Slurm's mails print; the reports, mails and "
    "accounting of LSF, PBS, Grid Engine and HTCondor; a site's own report with labels such as "
    "'CPU efficiency: 20 %'; a folder of Slurm's logs"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="-",
        help="a Slurm job id, a file, a folder of logs, the text in quotes, or - (default: "
        "standard input)",
    )
    parser.add_argument(
        "--cores", type=int, metavar="N", help="cores the job had, where the text does not say"
    )
    parser.add_argument(
        "--since",
        metavar="WHEN",
        help="a table of all Slurm jobs since a date (2026-11-01), or of a span (7days)",
    )
    parser.add_argument("--user", help="with --since: the jobs of this user, or of all")
    parser.add_argument(
        "--account", help="with --since: the jobs of this account, by all its users"
    )
    parser.add_argument(
        "--name", help="with --since: the jobs of this name, or pattern ('train-*')"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    from hpcncf.cli.output import print_json
    from hpcncf.explain.conclude import common_step, conclude
    from hpcncf.explain.groups import group_jobs

    if args.since is not None:
        return _show_workloads(args)
    for option in ("user", "account", "name"):
        if getattr(args, option) is not None:
            raise UsageError(f"--{option}: only with --since, which asks for many jobs")

    if args.cores is not None and args.cores < 1:
        raise UsageError(f"--cores: expected 1 or more, came {args.cores}")
    jobs, problems = _read(args.file)
    if not jobs:
        where = "standard input" if args.file == "-" else args.file[:80]
        why = f": {'; '.join(problems)}" if problems else ""
        raise UsageError(f"{where}: no figures of a job in it{why}; understood are {POSSIBLE}")
    for job in jobs:
        job.cores = job.cores or args.cores
    explanations = [conclude(job) for job in jobs]
    groups = group_jobs(jobs)
    shown = _shown(explanations, groups)
    if args.json:
        plain = {
            "jobs": [each.plain() for each in explanations],
            "groups": [_plain_group(each) for each in groups],
            "not_understood": problems,
            "next_step": common_step([each for each, _ in shown])[0],
        }
        print_json("explain", plain)
    else:
        _show(explanations, shown)
    for problem in problems:
        print(f"not understood: {problem}", file=sys.stderr)
    return 0


def _read(name: str) -> tuple[list[JobFields], list[str]]:
    """Read the jobs in a file, a folder of logs, a pipe or the text itself; also problems."""
    from hpcncf.explain.logs import job_id_from_name, read_logs
    from hpcncf.explain.read import read_with_problems

    if name == "-":
        return read_with_problems(sys.stdin.buffer.read(MOST_BYTES).decode(errors="replace"))
    if name[:1].isdigit() and len(name) < 40 and not Path(name).exists():
        from hpcncf.slurm.job_figures import looks_like_job_id, read_job

        if looks_like_job_id(name):
            return read_job(name), []
    path = Path(name)
    try:
        is_there = path.exists()
    except (OSError, ValueError):  # a name too long, or with a zero byte
        is_there = False
    if not is_there:
        jobs, problems = read_with_problems(name)
        if jobs or problems or "\n" in name:
            return jobs, problems
        raise UsageError(
            f"{name[:80]}: no such file or folder, and no figures of a job; understood are "
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
            return read_logs({each.name: _end_of(each, TAIL_BYTES) for each in newest})
        text = _end_of(path, MOST_BYTES)
    except OSError as error:
        raise HpcncfError(f"{name}: cannot be read: {error.strerror}") from None
    jobs, problems = read_with_problems(text)
    if jobs or not job_id_from_name(path.name):
        return jobs, problems
    return read_logs({path.name: text})


def _show_workloads(args: argparse.Namespace) -> int:
    from hpcncf.cli.workloads import show
    from hpcncf.explain.workloads import group
    from hpcncf.slurm.past_jobs import PastJobsQuery, parse_since, read_past_jobs

    if args.file != "-" or args.cores is not None:
        given = f"--cores {args.cores}" if args.cores is not None else args.file[:80]
        raise UsageError(f"--since: asks sacct for many jobs, and takes no {given} beside it")
    since = parse_since(args.since, datetime.now())
    query = PastJobsQuery(since, args.user or "", args.account or "", args.name or "")
    show(query, group(read_past_jobs(query)), args.json)
    return 0


def _end_of(path: Path, most: int) -> str:
    with path.open("rb") as file:
        if path.is_file():  # a pipe, as of `hpcncf explain <(seff 123)`, has no end to look from
            file.seek(max(path.stat().st_size - most, 0))
        return file.read(most).decode(errors="replace")


def _plain_group(group: JobGroup) -> dict[str, Any]:
    from hpcncf.explain.conclude import conclude

    members = [job.id for job in group.members]
    return {"kind": group.kind, "members": members, **conclude(group.whole).plain()}


Shown = list[tuple["Explanation", "JobGroup | None"]]


def _shown(explanations: Sequence[Explanation], groups: Sequence[JobGroup]) -> Shown:
    """Return what is explained one by one: each job, but an array's tasks by their mean.

    The parts of a heterogeneous job are followed by all of it.
    """
    from hpcncf.explain.conclude import conclude

    group_of = {id(job): group for group in groups for job in group.members}
    shown: Shown = []
    for each in explanations:
        group = group_of.get(id(each.job))
        if group is None or group.kind == "het":
            shown.append((each, None))
        if group is not None and each.job is group.members[-1]:
            shown.append((conclude(group.whole), group))
    return shown


def _show(explanations: Sequence[Explanation], shown: Shown) -> None:
    """Print what is to be explained; of very many jobs a table, and the one that idled most."""
    from hpcncf.cli.output import filled
    from hpcncf.explain.conclude import common_step, conclude

    if len(shown) > SHOWN:
        _table(explanations)
        shown = [(max(explanations, key=lambda each: each.job.core_hours_idle or 0.0), None)]
        print("\nthe one that idled most:")
    for number, (each, group) in enumerate(shown):
        print("\n" * (number > 0) + _heading(each.job, group))
        if group is not None and group.kind == "array":
            _table([conclude(job) for job in group.members], mean=each)
        notes = [f"note: {note}" for note in each.job.notes]
        _list("what follows", [*(said.text for said in each.conclusions), *notes])
        _list("what stays open", each.open_questions)
        print(f"  confidence\n    {each.confidence}: {each.confidence_reason}")
    step, why = common_step([each for each, _ in shown])
    if step:
        print(f"  next step\n    {step}")
        print(filled(why, indent="    "))


def _heading(job: JobFields, group: JobGroup | None) -> str:
    state = f", {job.state}" if job.state else ""
    if group is not None and group.kind == "array":
        states = [each.state or "of unknown end" for each in group.members]
        tally = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return f"{job.source}, {len(states)} tasks of array {group.id}: {tally}"
    if group is not None:
        return f"{job.source}, job {group.id}, all {len(group.members)} parts together{state}"
    return f"{f'{job.source}, job {job.id}' if job.id else job.source}{state}"


def _list(title: str, lines: Sequence[str]) -> None:
    from hpcncf.cli.output import filled

    if lines:
        print(f"  {title}")
    for line in lines:
        print(filled(line, indent="    "))


def _table(explanations: Sequence[Explanation], mean: Explanation | None = None) -> None:
    """Print a row for each job, and one for their mean if it is given."""
    from hpcncf.cli.output import table_layout
    from hpcncf.explain.words import format_core_hours, format_share

    def share(value: float | None) -> str:
        return "–" if value is None else format_share(value)

    rows = [
        [
            each.job.id,
            each.job.state,
            "–" if each.job.cores is None else str(each.job.cores),
            "–" if each.job.cores_used is None else f"{each.job.cores_used:.2f}",
            share(each.job.efficiency),
            share(each.job.memory_efficiency),
            share(each.job.time_efficiency),
            "–"
            if each.job.core_hours_idle is None
            else format_core_hours(each.job.core_hours_idle),
        ]
        for each in (*explanations[:MOST_ROWS], *([mean] if mean else []))
    ]
    if mean:
        rows[-1][0] = "mean"
    print(table_layout(["job", "state", "cores", "used", "CPU", "memory", "time", "idle"], rows))
    known = [each.job.core_hours_idle for each in explanations]
    idle = [hours for hours in known if hours is not None]
    if len(explanations) > MOST_ROWS:
        print(f"and {len(explanations) - MOST_ROWS} more: --json has them all")
    if idle:
        print(f"\n{format_core_hours(sum(idle))} reserved and not used, all together")
