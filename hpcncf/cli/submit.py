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


def describe_unsent(launched: Launched, command: Sequence[str]) -> list[str]:
    """Runs that were not submitted, why, and the command that submits them."""
    delivery, unclear = launched.delivery, launched.unclear
    lines: list[str] = []
    if delivery.unsent:
        lines.append(f"{_runs(len(delivery.unsent))} not submitted: {delivery.limit}")
        lines.append(f"submit the rest when jobs have ended: {shlex.join(command)}")
    if packed := _runs_per_task(launched):
        lines.append(
            f"or all at once, {packed} runs in a task, when the above have ended: "
            f"{shlex.join(_packed(command, packed))}"
        )
    if delivery.no_report:
        lines.append(f"the runs are submitted, but not the job to report: {delivery.no_report}")
    if unclear:
        lines.append(
            f"{_runs(len(unclear))} not submitted, possibly still queued or running: "
            f"{unclear[0].reason}"
        )
        lines.append(f"if you know that they are not: {shlex.join([*command, '--force'])}")
    return lines


def plain_unsent(launched: Launched, command: Sequence[str]) -> dict[str, Any]:
    """The same for `--json`."""
    packed, unsent = _runs_per_task(launched), launched.delivery.unsent
    return {
        "left": [run.id for run in unsent],
        "limit": launched.delivery.limit if unsent else None,
        "command_for_the_rest": shlex.join(command) if unsent else None,
        "command_for_all_at_once": shlex.join(_packed(command, packed)) if packed else None,
        "no_report": launched.delivery.no_report or None,
        "held": {state.run.id: state.reason for state in launched.unclear},
        "command_for_held": shlex.join([*command, "--force"]) if launched.unclear else None,
    }


def _runs_per_task(launched: Launched) -> int | None:
    """Runs per task with which all would fit, if that is more than now."""
    from hpcncf.submit.arrays import runs_per_task

    unsent = launched.delivery.unsent
    if not unsent:
        return None
    number = runs_per_task(unsent, launched.delivery.tasks)
    now = max(run.resources.runs_per_task for run in unsent)
    return number if number and number > now else None


def _packed(command: Sequence[str], number: int) -> list[str]:
    return [*command, "-s", f"resources.runs_per_task={number}"]


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
    sending_arguments(parser, "auto", "auto: slurm if sbatch is installed, else local (default)")
    parser.add_argument(
        "--check-node",
        type=float,
        nargs="?",
        const=CHECK_S,
        metavar="SECONDS",
        help="first check with one short job that a compute node sees results, data and the same "
        f"Python; submit nothing otherwise. Waits at most SECONDS (default {CHECK_S:g})",
    )
    parser.add_argument(
        "--no-preflight",
        action="store_true",
        help="skip the check against partition limits",
    )
    parser.add_argument("--again", action="store_true", help="also run complete runs again")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="default: results/<the job's name>"
    )


def sending_arguments(parser: argparse.ArgumentParser, default: str | None, help: str) -> None:
    parser.add_argument(
        "--cluster", choices=["auto", "local", "slurm", "debug"], default=default, help=help
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="return when the runs have ended: 0 if all are complete, else 3",
    )
    parser.add_argument(
        "--report", action="store_true", help="collect and report when all runs have ended"
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
    from hpcncf.submit.submit import check, choose_cluster, limits_of, seen_by_slurm, submit

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
        and not seen_by_slurm(paths, plan)
    ):
        print(f"hpcncf: {doubt}", file=sys.stderr)
    launched = submit(paths, job, plan, cluster, args.again, limits, args.force, args.report)
    return report_submission(args, paths, launched, cluster, _repeated(args))


def _repeated(args: argparse.Namespace) -> list[str]:
    """The command that submits the remaining runs."""
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
        raise UsageError(f"--check-node needs a node of Slurm; --cluster {cluster} has none")
    answer = node_check.check(paths, job, plan.active(), args.check_node)
    cores = f"{answer.usable:g} core{'s' * (answer.usable != 1)}"
    memory = f", {answer.limit_mib / 1024:.3g} GiB" if answer.limit_mib else ""
    print(
        f"node {answer.node} sees results and data, and runs Python {answer.python} with the same "
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
    """Print what was submitted, wait for it if requested, and return the exit code.

    `command` submits the remaining runs.
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
    for line in describe_unsent(launched, command):
        print(f"hpcncf: {line}", file=sys.stderr)
    # Also wait for runs that were queued or running before.
    waited_for = [run.id for run in launched.runs]
    waited_for += [state.run.id for state in launched.skipped if state.state != "completed"]
    if cluster == "debug":
        # Standard output is for the JSON alone.
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
            launch.debug(paths, launched.runs, launched.again)
            if args.report:
                report(str(paths.folder))
    waited = args.wait or cluster == "debug"
    if waited:
        code = wait(paths, waited_for, quiet=args.json)
        code = 3 if launched.refused else code
    if args.json:
        plain = _plain(paths, launched, cluster, waited) | plain_unsent(launched, command)
        print(json.dumps(plain, indent=2))
    incomplete = bool(launched.delivery.unsent or launched.unclear or launched.refused)
    return code if waited and code else 3 * incomplete


def _sentences(paths: ResultPaths, launched: Launched, cluster: Cluster) -> str:
    from hpcncf.cli.output import format_path

    there = format_path(paths.folder)
    where = {"local": "to this machine", "slurm": "to Slurm", "debug": "in this process"}[cluster]
    lines = [f"{_runs(len(launched.runs))} submitted {where}; results in {there}"]
    states = [state.state for state in launched.skipped]
    lines += [f"{states.count(word)} {word} already" for word in dict.fromkeys(states)]
    if launched.runs and cluster != "debug":
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
