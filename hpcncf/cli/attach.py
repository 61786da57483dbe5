"""`hpcncf attach`: watch a job or program that runs now."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from hpcncf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcncf.attach.job import RunningJob

DEFAULT_S = 20.0
LONGEST_S = 3600.0
JOB_ID = r"[1-9]\d*(?:_\d+|\+\d+)?"
EPILOG = """\
A job: on each of its nodes, by `srun --overlap`. A process: here. Reads /proc and the cgroup, and
lines by py-spy; Python 3.14 and later get the probe of `hpcncf run` for the time of the watch. The
program is neither stopped nor ended. Ctrl-C ends the watch early and shows what was seen.

example: hpcncf attach 12345
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="JOBID|PID",
        help="a running Slurm job (123, 123_4, 123+1), or a process on this machine with all that "
        "it started",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--job", action="store_true", help="it is the id of a job")
    kind.add_argument("--pid", action="store_true", help="it is the id of a process")
    parser.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_S,
        metavar="S",
        help="how long to watch (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.seconds <= LONGEST_S:
        raise UsageError(f"--seconds: expected 1 to {LONGEST_S:,.0f}, came {args.seconds:g}")
    target = _target(args.target, args.job, args.pid)
    if isinstance(target, int):
        raw = _watch_process(target, args.seconds)
        return _show([raw], f"process {target}", None, [], args.json)
    from hpcncf.attach.job import watch

    raws, missing = watch(target, args.seconds)
    return _show(raws, f"job {target.shown}", target, missing, args.json)


def _target(given: str, is_job: bool, is_pid: bool) -> int | RunningJob:
    """Return the process or the running job that is meant.

    Raises UsageError if there is neither, or both.
    """
    import re
    import shutil

    if not re.fullmatch(JOB_ID, given) or (is_pid and not given.isdecimal()):
        raise UsageError(
            f"attach: {given!r}: expected a process id, as in: hpcncf attach 123, or a job's, as "
            "123, 123_4 (a task of an array) or 123+1 (a part of a heterogeneous job)"
        )
    has_slurm = shutil.which("scontrol") is not None
    may_be_process = given.isdecimal() and not is_job
    if is_pid or (may_be_process and not has_slurm):
        return _process(given, "" if is_pid else "; no Slurm here either (no scontrol on PATH)")
    from hpcncf.attach.job import describe_unknown, find_job  # loads pydantic

    if not has_slurm:
        raise UsageError(describe_unknown(given))
    try:
        job = find_job(given)
    except UsageError as error:
        if not may_be_process:
            raise
        if not _exists(given):
            raise UsageError(f"{error}; nor is there a process {given} here") from None
        job = None
    if job is not None:
        if may_be_process and _exists(given):
            raise UsageError(
                f"attach: {given} is both a job that runs and a process on this machine; say which "
                f"one: hpcncf attach --job {given}, or --pid {given}"
            )
        return job
    if may_be_process and _exists(given):
        return _process(given)
    unknown = describe_unknown(given)
    raise UsageError(
        f"{unknown}; nor is there a process {given} here" if may_be_process else unknown
    )


def _exists(given: str) -> bool:
    import os

    return os.path.exists(f"/proc/{given}/stat")  # noqa: PTH110


def _process(given: str, more: str = "") -> int:
    """Return the id of a process that can be watched. Raises UsageError for another."""
    from hpcncf.attach import find

    try:
        find.check(int(given))
    except find.CannotWatch as error:
        raise UsageError(f"attach: {error}{more if not _exists(given) else ''}") from None
    return int(given)


def _watch_process(pid: int, seconds: float) -> dict[str, Any]:
    from hpcncf.attach import find
    from hpcncf.attach.observe import Observation
    from hpcncf.attach.watch import Watch

    try:
        return Observation(Watch([pid])).run(seconds)
    except find.CannotWatch as error:
        raise UsageError(f"attach: {error}") from None


def _show(
    raws: Sequence[dict[str, Any]],
    what: str,
    job: RunningJob | None,
    missing: Sequence[str],
    as_json: bool,
) -> int:
    """Print the page of one or more nodes, or the same as JSON."""
    from hpcncf.attach.as_records import records
    from hpcncf.attach.sampled import profiles
    from hpcncf.cli import attach_page
    from hpcncf.cli.output import print_json
    from hpcncf.cli.run_summary import marks_for
    from hpcncf_analysis.diagnosis.summary import conclude_cores

    ranks, nodes = records(
        raws,
        job=job.slurm_id if job else None,
        allocated={node: float(cpus) for node, cpus in job.nodes.items()} if job else None,
        programs={raw["node"]: profiles(raw) for raw in raws},
    )
    named = [
        f"{raw['node']}: {each}" if len(raws) > 1 else each
        for raw in raws
        for each in raw["unseen"]
    ]
    unseen = list(dict.fromkeys([*missing, *named]))
    if as_json:
        plain: dict[str, Any] = {
            "watched": what,
            "seconds": max(raw["elapsed_s"] for raw in raws),
            "conclusion": conclude_cores(ranks[0], nodes[0]),
            "notes": [each for raw in raws for each in raw["notes"]],
            "not_seen": unseen,
            "rank": ranks[0].model_dump(mode="json"),
            "node": nodes[0].model_dump(mode="json"),
            "nodes": [
                {
                    "node": raw["node"],
                    "rank": rank.model_dump(mode="json"),
                    "processes": raw["processes"],
                    "files": raw["files"],
                    "observer_cpu_s": raw["observer_cpu_s"],
                }
                for raw, rank in zip(raws, ranks, strict=True)
            ],
        }
        print_json("attach", plain)
        return 0
    marks = marks_for(sys.stdout)
    command = attach_page.name_command(ranks[0].run["workload"]["command"])
    title = f"{what}, {job.name if job else command}"
    print(*attach_page.lines(title, raws, ranks, nodes, marks, unseen), sep="\n")
    return 0
