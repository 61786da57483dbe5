"""`hpcncf retry`: submit failed and missing runs again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.cli.output import format_path, warn
from hpcncf.cli.submit import sending_arguments
from hpcncf.text import pluralize
from hpcncf.worker.__main__ import add_setting_argument

if TYPE_CHECKING:
    from hpcncf.job.plan import Plan
    from hpcncf.job.spec import JobSpec
    from hpcncf.launch.retry import RequestChange
    from hpcncf.paths import ResultPaths
    from hpcncf.slurm.preflight import Limits

EPILOG = """\
more time:                      hpcncf retry results/demo -s resources.timeout_min=60
twice what a run exceeded:      hpcncf retry results/demo --escalate
Exit code 3: not all were submitted, or with --wait not all completed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, metavar="RESULTS", help="the results folder")
    add_setting_argument(
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
    from hpcncf.cli.submit import report_submission
    from hpcncf.launch import submit as launch
    from hpcncf.launch.retry import amend
    from hpcncf.paths import ResultPaths

    paths = ResultPaths(args.results.resolve())
    job = _job(paths)
    plan = amend(paths, args.settings)
    cluster = launch.choose_cluster(args.cluster or launch.last_cluster(paths))
    limits, alone = launch.limits_of(job, cluster), set[str]()
    if args.escalate:
        plan, alone = _escalate(paths, job, limits)
    alone |= _cancelled(paths, plan)
    launched = launch.submit(
        paths,
        job,
        plan,
        cluster,
        limits=limits,
        force=args.force,
        report=args.report,
        without=alone,
        retry=True,
    )
    where = ["--cluster", args.cluster] * (args.cluster is not None)
    return report_submission(
        args, paths, launched, cluster, ["hpcncf", "retry", str(args.results), *where]
    )


def _cancelled(paths: ResultPaths, plan: Plan) -> set[str]:
    """Ids of cancelled runs, which a retry leaves out, with a warning about them."""
    from hpcncf.state import status

    states = status.states(paths, plan)
    found = {state.run.id for state in states if state.state == "cancelled"}
    if found:
        warn(
            f"{pluralize(len(found), 'cancelled run')} not submitted: "
            f"`hpcncf submit {format_path(paths.job)}` submits them again"
        )
    return found


def _escalate(paths: ResultPaths, job: JobSpec, limits: Limits | None) -> tuple[Plan, set[str]]:
    """Raise memory or time of runs that ran out of them; also returns runs at the limit.

    Returns the new plan and the ids of the runs that cannot get more.
    """
    from hpcncf.launch import retry

    plan, changes = retry.escalate(paths, job, limits)
    warn(*(_describe_change(change, len(runs)) for change, runs in changes.items()))
    return plan, {run for change, runs in changes.items() if change.why_not for run in runs}


def _describe_change(change: RequestChange, number: int) -> str:
    runs = pluralize(number, "run")
    out_of, unit = {"mem_gb": ("memory", "GB"), "timeout_min": ("time", "min")}[change.key]
    had = f"{runs} out of {out_of} with {change.before:g} {unit}"
    if change.why_not:
        return f"{had}: not sent again: {change.why_not}"
    return f"{had}: now {change.after:g} {unit}"


def _job(paths: ResultPaths) -> JobSpec:
    from hpcncf.errors import UsageError
    from hpcncf.job.load import load_job
    from hpcncf.records.plan_file import read_plan

    if not paths.job.exists():
        read_plan(paths)  # which reports it if there are no results at all
        raise UsageError(
            f"{paths.folder}: has no {paths.job.name}, so it is not from `hpcncf submit`: "
            "run the command again instead"
        )
    return load_job(paths.job)
