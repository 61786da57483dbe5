"""The batch scripts that `plan --sbatch` and `plan --by-hand` print."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hpcncf.cli.output import warn
from hpcncf.errors import UsageError
from hpcncf.job.plan import Plan, Run
from hpcncf.job.spec import JobSpec
from hpcncf.launch import submit
from hpcncf.launch.job_arrays import Quota, Task, build_tasks, query_quota, send_while_room
from hpcncf.paths import ResultPaths
from hpcncf.records.submissions import user
from hpcncf.slurm.batch_script import RunSource, plain_script, script_text
from hpcncf.slurm.preflight import Limits
from hpcncf.slurm.site import Site
from hpcncf.state import status


def show(
    args: argparse.Namespace, job: JobSpec, site: Site, plan: Plan, paths: ResultPaths
) -> None:
    """Print the batch scripts of all runs that can be submitted.

    A single script is printed byte for byte, for sbatch to read. Raises UsageError for a number
    that does not exist, and for several plain scripts if no number selects one.
    """
    states = [state for state in status.states(paths, plan) if not state.run.retired]
    left_out = {each.run.id: each.why for each in submit.not_submittable(states)}
    if unknown := list(left_out.values()).count("unknown"):
        warn(f"not printed, possibly still queued or running: {unknown}")
    runs = [state.run for state in states if state.run.id not in left_out]
    by_hand = args.by_hand is not None
    if by_hand:
        source = RunSource(args.job.resolve(), paths.folder, args.settings)
        arrays = _arrays([[run] for run in runs], Quota(array=query_quota().array))
        scripts = [plain_script(job, site, [run for (run,) in each], source) for each in arrays]
    else:
        refused = find_refusals(site, runs)
        warn(*(f"left out: {line}" for line in submit.describe_refusals(refused)))
        left = [run for run in runs if run.id not in refused]
        folder = paths.submitit(user())
        arrays = _arrays(build_tasks(left), query_quota())
        scripts = [
            script_text(folder, job, site, each[0][0].resources, len(each)) for each in arrays
        ]
    number = args.by_hand or args.sbatch or 0
    if not 0 <= number <= len(scripts):
        raise UsageError(f"array {number}: there are {len(scripts)}, counted from 1")
    if not scripts:
        reason = "no run fits" if runs else "all runs are complete, queued or running"
        warn(f"nothing to submit: {reason}")
        return
    if names := sorted(name for name in os.environ if name.startswith("SBATCH_")):
        warn(f"in your environment, and before #SBATCH lines: {', '.join(names)}")
    if len(scripts) == 1 or number:
        sys.stdout.write(scripts[number - 1])
        return
    if by_hand:
        raise UsageError(
            f"--by-hand: {len(scripts)} arrays need a script each, for sbatch takes one: "
            f"--by-hand 1 to --by-hand {len(scripts)}"
        )
    for count, script in enumerate(scripts, start=1):
        print(f"==> array {count} of {len(scripts)} <==\n{script}")


def find_refusals(site: Site, runs: Sequence[Run]) -> dict[str, str]:
    """Reasons why Slurm would refuse runs, by run id; empty on a machine without Slurm."""
    has_slurm = submit.choose_cluster("auto") == "slurm"
    limits = Limits.query(site) if has_slurm else None
    return submit.find_refusals(list(runs), "slurm", limits)


def _arrays(tasks: list[Task], quota: Quota) -> list[list[Task]]:
    """Group tasks into the arrays that `submit` would submit."""
    arrays: list[list[Task]] = []
    send_while_room(tasks, quota, arrays.append)
    if left := len(tasks) - sum(map(len, arrays)):
        warn(f"{left} of {len(tasks)} tasks are left out: {quota.limit}")
    return arrays
