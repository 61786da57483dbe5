"""The batch scripts that `plan --sbatch` and `plan --by-hand` print."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from hpcncf.errors import UsageError
from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import JobSpec
from hpcncf.launch import submit
from hpcncf.launch.job_arrays import Quota, Task, build_tasks, query_quota, send_while_room
from hpcncf.paths import ResultPaths
from hpcncf.records.submissions import user
from hpcncf.slurm.batch_script import Source, plain_script, script_text
from hpcncf.slurm.site import load_sites
from hpcncf.state import status

# An error names as many of the numbers to choose from.
MOST: Final = 4


def show(args: argparse.Namespace, job: JobSpec, plan: Plan, paths: ResultPaths) -> None:
    """Print the scripts of the runs that can be submitted.

    A single script is printed byte for byte, for sbatch to read. Raises UsageError for a number
    that does not exist, and for several plain scripts if no number selects one.
    """
    states = [state for state in status.states(paths, plan) if not state.run.retired]
    left_out = {each.run.id: each.why for each in submit.not_submittable(states)}
    if unknown := list(left_out.values()).count("unknown"):
        sys.stderr.write(f"not printed, possibly still queued or running: {unknown}\n")
    wanted = runs = [state.run for state in states if state.run.id not in left_out]
    by_hand = args.by_hand is not None
    if not by_hand:
        refused = find_refusals(job, runs)
        for line in lines_refusals(refused):
            sys.stderr.write(f"{line}\n")
        wanted = [run for run in runs if run.id not in refused]
    printed = list(_by_hand(args, job, runs, paths) if by_hand else _sent(job, wanted, paths))
    number = args.by_hand or args.sbatch or 0
    if not 0 <= number <= len(printed):
        raise UsageError(f"array {number}: there are {len(printed)}, counted from 1")
    if not wanted:
        all_are = "all runs are complete, queued or running" if not runs else "no run fits"
        sys.stderr.write(f"nothing to submit: {all_are}\n")
        return
    _warn_of_variables()
    if len(printed) == 1 or number:
        sys.stdout.write(printed[number - 1])
        return
    if by_hand:
        ways = [f"--by-hand {count}" for count in range(1, len(printed) + 1)]
        more = ["..."] * (len(printed) > MOST)
        raise UsageError(
            f"--by-hand: {len(printed)} arrays need a script each, for sbatch takes one: "
            + ", ".join(ways[:MOST] + more)
        )
    for count, script in enumerate(printed, start=1):
        print(f"==> array {count} of {len(printed)} <==\n{script}")


def _sent(job: JobSpec, runs: list[Run], paths: ResultPaths) -> Iterator[str]:
    folder = paths.submitit(user())
    for array in _arrays(build_tasks(runs), query_quota()):
        yield script_text(folder, job, array[0][0].resources, len(array))


def _by_hand(
    args: argparse.Namespace, job: JobSpec, runs: list[Run], paths: ResultPaths
) -> Iterator[str]:
    site = load_sites(job.site)
    source = Source(args.job.resolve(), paths.folder, args.settings)
    alone = [[run] for run in runs]
    for array in _arrays(alone, Quota(array=query_quota().array)):
        yield plain_script(job, site, [run for (run,) in array], source)


def _arrays(tasks: list[Task], quota: Quota) -> list[list[Task]]:
    """The arrays that `submit` would send."""
    arrays: list[list[Task]] = []
    send_while_room(tasks, quota, arrays.append)
    left = len(tasks) - sum(map(len, arrays))
    if left:
        sys.stderr.write(f"{left} of {len(tasks)} tasks are left out: {quota.limit}\n")
    return arrays


def _warn_of_variables() -> None:
    names = sorted(name for name in os.environ if name.startswith("SBATCH_"))
    if names:
        sys.stderr.write(f"in your environment, and before #SBATCH lines: {', '.join(names)}\n")


def find_refusals(job: JobSpec, runs: Sequence[Run]) -> dict[str, str]:
    """Run id -> why Slurm would refuse it; empty on a machine without Slurm."""
    limits = submit.limits_of(job, submit.choose_cluster("auto"))
    return submit.find_refusals(list(runs), "slurm", limits)


def lines_refusals(refused: dict[str, str]) -> list[str]:
    """A line for each reason, as `submit` prints it."""
    return [f"left out: {line}" for line in submit.describe_refusals(refused)]
