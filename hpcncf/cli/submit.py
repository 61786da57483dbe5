"""`hpcncf submit`: submit runs to Slurm or to a queue on this machine."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcncf.cli.output import print_json, warn
from hpcncf.cli.plan import job_arguments, warn_of_job
from hpcncf.text import pluralize

if TYPE_CHECKING:
    from hpcncf.launch.submit import Launched
    from hpcncf.paths import ResultPaths
    from hpcncf.records.submissions import Cluster


def describe_unsent(launched: Launched, command: Sequence[str]) -> list[str]:
    """Describe the runs that were not submitted, why, and the command that submits them."""
    no_room, unknown = launched.left_out("no_room"), launched.left_out("unknown")
    commands = _commands(launched, command)
    lines: list[str] = []
    if no_room:
        lines.append(f"{pluralize(len(no_room), 'run')} not submitted: {no_room[0].reason}")
        lines.append(f"submit the rest when jobs have ended: {commands['rest']}")
    if commands["all_at_once"]:
        lines.append(
            f"or all at once, with several runs in a task, when the above have ended: "
            f"{commands['all_at_once']}"
        )
    if launched.delivery.no_report:
        refusal = launched.delivery.no_report
        lines.append(f"the runs are submitted, but not the job to report: {refusal}")
    if unknown:
        lines.append(
            f"{pluralize(len(unknown), 'run')} not submitted, possibly still queued or running: "
            f"{unknown[0].reason}"
        )
        lines.append(f"if you know that they are not: {commands['unknown']}")
    return lines


def _commands(launched: Launched, command: Sequence[str]) -> dict[str, str | None]:
    """Commands that submit the remaining runs; None where not needed.

    `rest` is for when jobs have ended, `all_at_once` puts several runs into a task, `unknown`
    ignores an unknown state.
    """
    from hpcncf.launch.job_arrays import runs_per_task

    no_room = [each.run for each in launched.left_out("no_room")]
    packed = runs_per_task(no_room, launched.delivery.tasks) if no_room else None
    if packed and packed <= max(run.resources.runs_per_task for run in no_room):
        packed = None
    several = [*command, "-s", f"resources.runs_per_task={packed}"]
    return {
        "rest": shlex.join(command) if no_room else None,
        "all_at_once": shlex.join(several) if packed else None,
        "unknown": shlex.join([*command, "--force"]) if launched.left_out("unknown") else None,
    }


EPILOG = """\
Complete, queued and running runs are not submitted again.
Exit code 3: not all were submitted (the reason and the command for the rest are printed), or with
--wait not all completed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_arguments(parser)
    sending_arguments(parser, "auto", "auto: slurm if sbatch is installed, else local (default)")
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
    parser.add_argument("--cluster", choices=["auto", "local", "slurm"], default=default, help=help)
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
    from hpcncf.launch.changed_code import renew_changed_runs
    from hpcncf.launch.submit import check, choose_cluster, limits_of, seen_by_slurm, submit
    from hpcncf.paths import ResultPaths
    from hpcncf.records.plan_file import record_plan
    from hpcncf.slurm import preflight

    job = load.load_job(args.job, args.settings)
    plan = load.build_plan(job, args.job, args.settings)
    warn_of_job(job)
    cluster = choose_cluster(args.cluster)
    limits = limits_of(job, cluster, ask=not args.no_preflight)
    check(plan.active(), cluster, limits)
    paths = ResultPaths((args.results or Path("results") / job.name).resolve())
    renewed = renew_changed_runs(paths, job, plan)
    for line in renewed.describe():
        print(f"hpcncf: {line}", file=sys.stderr)
    plan = record_plan(paths, job, renewed.plan)
    if (
        cluster == "slurm"
        and (warning := preflight.unshared_folder_warning(paths.folder))
        and not seen_by_slurm(paths, plan)
    ):
        print(f"hpcncf: {warning}", file=sys.stderr)
    launched = submit(paths, job, plan, cluster, args.again, limits, args.force, args.report)
    return report_submission(args, paths, launched, cluster, _repeated(args))


def _repeated(args: argparse.Namespace) -> list[str]:
    """Words of the command that submits the remaining runs."""
    settings = [word for setting in args.settings for word in ("-s", setting)]
    where = [] if args.results is None else ["--results", str(args.results)]
    cluster = [] if args.cluster == "auto" else ["--cluster", args.cluster]
    return ["hpcncf", "submit", str(args.job), *settings, *where, *cluster]


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

    warn_of_launch(launched)
    if not args.json:
        print(_sentences(paths, launched, cluster))
    warn(*describe_unsent(launched, command))
    # Also wait for runs that were queued or running before.
    waited_for = [run.id for run in launched.runs]
    active = [each for each in launched.left_out("active") if each.reason != "completed"]
    waited_for += [each.run.id for each in active]
    incomplete = 3 * (len(launched.left_out("active")) < len(launched.not_submitted))
    if args.wait:
        code = wait(paths, waited_for, quiet=args.json)
        incomplete = code or incomplete
    if args.json:
        print_json(args.verb, _plain(paths, launched, cluster, args.wait, command))
    return incomplete


def warn_of_launch(launched: Launched) -> None:
    from hpcncf.launch.submit import describe_refusals

    refused = {each.run.id: each.reason for each in launched.left_out("refused")}
    warn(*(f"left out: {line}" for line in describe_refusals(refused)), *launched.notes)


def _sentences(paths: ResultPaths, launched: Launched, cluster: Cluster) -> str:
    from hpcncf.cli.output import format_path

    there = format_path(paths.folder)
    where = "to Slurm" if cluster == "slurm" else "to this machine"
    lines = [f"{pluralize(len(launched.runs), 'run')} submitted {where}; results in {there}"]
    states = [each.reason for each in launched.left_out("active")]
    lines += [f"{states.count(word)} {word} already" for word in dict.fromkeys(states)]
    if launched.runs:
        lines.append(f"look with: hpcncf status {there}")
    return "\n".join(lines)


def _plain(
    paths: ResultPaths,
    launched: Launched,
    cluster: Cluster,
    waited: bool,
    command: Sequence[str],
) -> dict[str, Any]:
    from hpcncf.cli.progress import plain_progress
    from hpcncf.records.plan_file import read_plan
    from hpcncf.state import status

    asked = {run.id for run in launched.runs}
    if waited:
        asked |= {each.run.id for each in launched.left_out("active")}
    states = status.states(paths, read_plan(paths))
    return {
        "results": str(paths.folder),
        "cluster": cluster,
        "submitted": [run.id for run in launched.runs],
        "not_submitted": [
            {"run": each.run.id, "why": each.why, "reason": each.reason}
            for each in launched.not_submitted
        ],
        "commands": _commands(launched, command),
        "no_report": launched.delivery.no_report or None,
        "runs": [plain_progress(state) for state in states if state.run.id in asked],
    }
