"""`hpcncf retry`: what failed or is missing once more, and nothing else."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.cli.submit import sending_arguments
from hpcncf.rank import arguments

if TYPE_CHECKING:
    from hpcncf.paths import ResultPaths
    from hpcncf.plan import Plan
    from hpcncf.slurm.limits import Limits
    from hpcncf.spec import JobSpec
    from hpcncf.submit.escalate import Change

HELP = "submit once more what failed or is missing, and nothing else"
EPILOG = """\
what timed out, with more time: hpcncf retry results/demo -s resources.timeout_min=60
what ran out of memory or time, each with twice as much: hpcncf retry results/demo --escalate
exit codes: 0 submitted, and with --wait all complete; 1 an error; 2 the request is wrong;
3 when Slurm had no room for all (the command for the rest is printed), when it is not known whether
some still run, and with --wait when some did not complete
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, metavar="RESULTS", help="the results folder")
    arguments.settings(
        parser,
        "resources.mem_gb, timeout_min or runs_per_task of what is sent now and later retried",
    )
    parser.add_argument(
        "--escalate",
        action="store_true",
        help="twice the memory for what ran out of memory, twice the time for what timed out; at "
        "most 8 times what the job file asks",
    )
    sending_arguments(parser, None, "default: where it was submitted last")


def run(args: argparse.Namespace) -> int:
    from hpcncf.cli import submit
    from hpcncf.paths import ResultPaths
    from hpcncf.submit import amend, launch

    paths = ResultPaths(args.results.resolve())
    job = _job(paths)
    plan = amend.amend(paths, args.settings)
    cluster = launch.choose_cluster(args.cluster or launch.last_cluster(paths))
    limits, alone = launch.limits_of(job, cluster), set[str]()
    if args.escalate:
        plan, alone = _escalate(paths, job, limits)
    launched = launch.submit(
        paths,
        job,
        plan,
        cluster,
        limits=limits,
        force=args.force,
        report=args.report,
        without=alone,
    )
    where = ["--cluster", args.cluster] * (args.cluster is not None)
    return submit.tell(
        args, paths, launched, cluster, ["hpcncf", "retry", str(args.results), *where]
    )


def _escalate(paths: ResultPaths, job: JobSpec, limits: Limits | None) -> tuple[Plan, set[str]]:
    """The plan with more for what ran out, and the runs that get no more."""
    from hpcncf.submit import escalate

    plan, changes = escalate.escalate(paths, job, limits.refusal if limits else lambda _: None)
    for change, runs in changes.items():
        print(f"hpcncf: {_told(change, len(runs))}", file=sys.stderr)
    return plan, {run for change, runs in changes.items() if change.why_not for run in runs}


def _told(change: Change, number: int) -> str:
    runs = f"{number} run{'s' * (number != 1)}"
    out_of, unit = {"mem_gb": ("memory", "GB"), "timeout_min": ("time", "min")}[change.key]
    had = f"{runs} out of {out_of} with {change.before:g} {unit}"
    if change.why_not:
        return f"{had}: not sent again: {change.why_not}"
    return f"{had}: now {change.after:g} {unit}"


def _job(paths: ResultPaths) -> JobSpec:
    from hpcncf import jobfile
    from hpcncf.errors import UsageError
    from hpcncf.results import read_plan

    if not paths.job.exists():
        read_plan(paths)  # which says so where there are no results at all
        raise UsageError(
            f"{paths.folder}: has no {paths.job.name}, so it is not from `hpcncf submit`: "
            "run the command again instead"
        )
    return jobfile.load_jobfile(paths.job)
