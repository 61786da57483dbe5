"""What a worker is pointed at: a job file or a results folder, and the run meant by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcncf import jobfile
from hpcncf import results as folders
from hpcncf.errors import UsageError
from hpcncf.paths import ResultPaths
from hpcncf.plan import Plan, Run
from hpcncf.slurm import sites


def find(
    source: Path,
    run_id: str | None,
    overrides: Sequence[str] = (),
    results: Path | None = None,
    leave_plan: bool = True,
) -> tuple[Run, ResultPaths]:
    """The run, and the folder of its results: results/<the job's name> for a job file.

    `leave_plan`: write plan and job file there; a plan that is there gets the run, if it is new.
    Raises UsageError where it is not clear which run is meant.
    """
    if source.is_dir():
        if overrides or results:
            raise UsageError(
                f"{source}: is a results folder, its plan is made: -s and --results go with a "
                "job file"
            )
        paths = ResultPaths(source)
        return chosen(folders.read_plan(paths), run_id), paths
    job = jobfile.load_jobfile(source, overrides)
    plan = jobfile.plan(job, source, overrides)
    run = chosen(plan, run_id)
    paths = ResultPaths(results or Path("results") / job.name)
    if leave_plan and paths.plan.exists():
        folders.add_run(paths, plan.job, run)
    elif leave_plan:
        folders.leave_plan(paths, sites.anchored(job, source.parent), plan)
    return run, paths


def chosen(plan: Plan, run_id: str | None) -> Run:
    """The run asked for; without an id, the only one. Raises UsageError listing them."""
    if run_id is not None:
        return plan.run(run_id)
    active = plan.active()
    if len(active) == 1:
        return active[0]
    lines = "\n".join(f"  {run.id}  {_told(run)}" for run in active)
    raise UsageError(f"job {plan.job} has {len(active)} runs: choose one with --run ID\n{lines}")


def _told(run: Run) -> str:
    values = [f"{key.split('.')[1]}={value}" for key, value in run.varied.items()]
    return " ".join([*values, f"repeat={run.repeat}"])
