"""`hpcncf submit`: submit runs to Slurm or to a queue on this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcncf.cli.plan import job_arguments, warn

if TYPE_CHECKING:
    from hpcncf.job.plan import Plan
    from hpcncf.job.spec import JobSpec
    from hpcncf.paths import ResultPaths
    from hpcncf.records.submissions import Cluster
    from hpcncf.submit.submit import Launched


def sentences(launched: Launched, command: Sequence[str]) -> list[str]:
    told: list[str] = []
    given, held = launched.given, launched.held
    if given.left:
        told.append(f"{_runs(len(given.left))} left: {given.limit}")
        told.append(f"send the rest when jobs have ended: {shlex.join(command)}")
    packed = _packed(launched)
    if packed:
        told.append(
            f"or all at once, {packed} runs in a task, when the above have ended: "
            f"{shlex.join(_in_tasks(command, packed))}"
        )
    if given.no_report:
        told.append(f"the runs are submitted, but nothing will report them: {given.no_report}")
    if held:
        told.append(
            f"{_runs(len(held))} held back, for whether they are queued or run is not known: "
            f"{held[0].reason}"
        )
        told.append(f"send them where you know that they are not: {shlex.join(_forced(command))}")
    return told


def plain(launched: Launched, command: Sequence[str]) -> dict[str, Any]:
    packed = _packed(launched)
    return {
        "left": [run.id for run in launched.given.left],
        "limit": launched.given.limit if launched.given.left else None,
        "command_for_the_rest": shlex.join(command) if launched.given.left else None,
        "command_for_all_at_once": shlex.join(_in_tasks(command, packed)) if packed else None,
        "no_report": launched.given.no_report or None,
        "held": {state.run.id: state.reason for state in launched.held},
        "command_for_held": shlex.join(_forced(command)) if launched.held else None,
    }


def _packed(launched: Launched) -> int | None:
    """How many runs in a task would leave none, where that is more than now."""
    from hpcncf.submit.arrays import runs_per_task

    given = launched.given
    if not given.left:
        return None
    number = runs_per_task(given.left, given.tasks)
    now = max(run.resources.runs_per_task for run in given.left)
    return number if number and number > now else None


def _in_tasks(command: Sequence[str], number: int) -> list[str]:
    return [*command, "-s", f"resources.runs_per_task={number}"]


def _forced(command: Sequence[str]) -> list[str]:
    return [*command, "--force"]


def _runs(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"


HELP = "Submit the runs of a job file."
EPILOG = """\
Complete, queued and running runs are not submitted again.
Exit code 3: not all were submitted (the reason and the command for the rest are printed), or with
--wait not all completed. Exit code 1: --check-node found a problem; nothing is submitted.
"""
CHECK_S = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_arguments(parser)
    sending_arguments(parser, "auto", "auto: slurm where there is sbatch, else local (default)")
    parser.add_argument(
        "--check-node",
        type=float,
        nargs="?",
        const=CHECK_S,
        metavar="SECONDS",
        help="first see in one short job whether a compute node sees results, data and the same "
        f"Python, and submit only then; waits at most so long (default {CHECK_S:g})",
    )
    parser.add_argument(
        "--no-preflight",
        action="store_true",
        help="submit without a look at the partition's limits, also what would wait for ever",
    )
    parser.add_argument("--again", action="store_true", help="run complete runs once more, too")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="default: results/<the job's name>"
    )


def sending_arguments(parser: argparse.ArgumentParser, default: str | None, told: str) -> None:
    parser.add_argument(
        "--cluster", choices=["auto", "local", "slurm", "debug"], default=default, help=told
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="return when the runs have ended: 0 when all are complete, else 3",
    )
    parser.add_argument(
        "--report", action="store_true", help="collect and report when all of these have ended"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="also submit runs whose state is unknown",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of sentences")


def run(args: argparse.Namespace) -> int:
    from hpcncf.job import load
    from hpcncf.paths import ResultPaths
    from hpcncf.records.results_folder import leave_plan
    from hpcncf.slurm import cluster_info
    from hpcncf.slurm.preflight import Limits
    from hpcncf.slurm.site import anchored
    from hpcncf.submit.submit import check, choose_cluster, limits_of, reached, submit

    job = anchored(load.load_job(args.job, args.settings), args.job.parent)
    plan = load.build_plan(job, args.job, args.settings)
    warn(job)
    cluster = choose_cluster(args.cluster)
    limits = Limits.unknown() if args.no_preflight else limits_of(job, cluster)
    check(plan.active(), cluster, limits)
    paths = ResultPaths((args.results or Path("results") / job.name).resolve())
    plan = leave_plan(paths, job, plan)
    if args.check_node is not None:
        _check_node(args, paths, job, plan, cluster)
    elif (
        cluster == "slurm"
        and (doubt := cluster_info.doubt(paths.folder))
        and not reached(paths, plan)
    ):
        print(f"hpcncf: {doubt}", file=sys.stderr)
    launched = submit(paths, job, plan, cluster, args.again, limits, args.force, args.report)
    return report_submission(args, paths, launched, cluster, _same(args))


def _same(args: argparse.Namespace) -> list[str]:
    """The command that submits what this one leaves."""
    settings = [word for setting in args.settings for word in ("-s", setting)]
    where = [] if args.results is None else ["--results", str(args.results)]
    cluster = [] if args.cluster == "auto" else ["--cluster", args.cluster]
    return ["hpcncf", "submit", str(args.job), *settings, *where, *cluster]


def _check_node(
    args: argparse.Namespace, paths: ResultPaths, job: JobSpec, plan: Plan, cluster: Cluster
) -> None:
    from hpcncf.errors import UsageError
    from hpcncf.submit import node_check

    if cluster != "slurm":
        raise UsageError(f"--check-node asks a node of Slurm; --cluster {cluster} has none")
    told = node_check.check(paths, job, plan.active(), args.check_node)
    cores = f"{told.usable:g} core{'s' * (told.usable != 1)}"
    memory = f", {told.limit_mib / 1024:.3g} GiB" if told.limit_mib else ""
    print(
        f"node {told.node} sees results and data, and runs Python {told.python} with the same "
        f"packages; {cores}{memory} for a rank",
        file=sys.stderr,
    )


def report_submission(
    args: argparse.Namespace,
    paths: ResultPaths,
    launched: Launched,
    cluster: Cluster,
    command: Sequence[str],
) -> int:
    """Say what was submitted, wait for it when asked, and return the exit code.

    `command` submits what is left.
    """
    from hpcncf.cli.wait import wait
    from hpcncf.submit import submit as launch
    from hpcncf.submit.final_report import report

    for line in launch.describe_refusals(launched.refused):
        print(f"hpcncf: left out: {line}", file=sys.stderr)
    for line in launched.notes:
        print(f"hpcncf: {line}", file=sys.stderr)
    if not args.json:
        print(_sentences(paths, launched, cluster))
    for line in sentences(launched, command):
        print(f"hpcncf: {line}", file=sys.stderr)
    # What was running already is part of the question, too.
    waited_for = [run.id for run in launched.runs]
    waited_for += [state.run.id for state in launched.skipped if state.state != "completed"]
    if cluster == "debug":
        # JSON is to be alone on the standard output: what the runs print goes beside it.
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
            launch.debug(paths, launched.runs, launched.again)
            if args.report:
                report(str(paths.folder))
    waited = args.wait or cluster == "debug"
    if waited:
        code = wait(paths, waited_for, quiet=args.json)
        code = 3 if launched.refused else code
    if args.json:
        told = _plain(paths, launched, cluster, waited) | plain(launched, command)
        print(json.dumps(told, indent=2))
    left = bool(launched.given.left or launched.held or launched.refused)
    return code if waited and code else 3 * left


def _sentences(paths: ResultPaths, launched: Launched, cluster: Cluster) -> str:
    from hpcncf.cli.output import format_path

    there = format_path(paths.folder)
    where = {"local": "to this machine", "slurm": "to Slurm", "debug": "in this process"}[cluster]
    number = len(launched.runs)
    lines = [f"{number} run{'s' * (number != 1)} submitted {where}; results in {there}"]
    states = [state.state for state in launched.skipped]
    lines += [f"{states.count(word)} {word} already" for word in dict.fromkeys(states)]
    if number and cluster != "debug":
        lines.append(f"look with: hpcncf status {there}")
    return "\n".join(lines)


def _plain(
    paths: ResultPaths, launched: Launched, cluster: Cluster, waited: bool
) -> dict[str, Any]:
    from hpcncf.cli.progress import plain_progress
    from hpcncf.records.results_folder import read_plan
    from hpcncf.state import status

    asked = {run.id for run in launched.runs}
    if waited:
        asked |= {state.run.id for state in launched.skipped}
    states = status.states(paths, read_plan(paths))
    return {
        "results": str(paths.folder),
        "cluster": cluster,
        "submitted": [run.id for run in launched.runs],
        "skipped": {state.run.id: state.state for state in launched.skipped},
        "refused": launched.refused,
        "runs": [plain_progress(state) for state in states if state.run.id in asked],
    }
