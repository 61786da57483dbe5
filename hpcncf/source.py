"""What a worker is pointed at: a job file or a results folder, and the run meant by it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hpcncf import jobfile, plan, records
from hpcncf.errors import UsageError
from hpcncf.plan import Plan, Run
from hpcncf.records import ResultPaths


def opened(
    source: Path, overrides: Sequence[str] = (), results: Path | None = None
) -> tuple[ResultPaths, Plan]:
    """The results folder and the plan; a job file's results lie in results/<its name>."""
    if not source.is_dir():
        job = jobfile.load(source, overrides)
        return ResultPaths(results or Path("results") / job.name), jobfile.plan(job, source)
    if overrides or results:
        raise UsageError(
            f"{source}: is a results folder, its plan is made: -s and --results go with a job file"
        )
    return ResultPaths(source), read_plan(ResultPaths(source))


def read_plan(paths: ResultPaths) -> Plan:
    """Raises UsageError where there is none, or it is no plan."""
    text = jobfile.read_text(paths.plan)
    try:
        return jobfile.validated(Plan, json.loads(text), str(paths.plan))
    except json.JSONDecodeError as error:
        raise UsageError(f"{paths.plan}: not JSON: {error}") from None


def leave(paths: ResultPaths, new: Plan, source: Path, run: Run) -> None:
    """Leave plan and job file with the results, for those who read them later.

    A plan that is there already and knows the run stays as it is.
    """
    if paths.plan.exists():
        old = read_plan(paths)
        if old.job != new.job:
            raise UsageError(
                f"{paths.folder}: holds results of job {old.job!r}, not of {new.job!r}: "
                "choose another folder with --results"
            )
        if any(known.id == run.id for known in old.runs):
            return
        new = plan.merged(old, new)
    records.write(paths.plan, new)
    records.write_text(paths.job, jobfile.read_text(source))


def chosen(planned: Plan, run_id: str | None) -> Run:
    """The run asked for; without an id, the only one. Raises UsageError listing them."""
    if run_id is not None:
        return planned.run(run_id)
    active = planned.active()
    if len(active) == 1:
        return active[0]
    lines = [f"  {run.id}  {_told(run)}" for run in active]
    raise UsageError(
        f"job {planned.job} has {len(active)} runs: choose one with --run\n" + "\n".join(lines)
    )


def _told(run: Run) -> str:
    values = [f"{key.split('.')[1]}={value}" for key, value in run.varied.items()]
    return " ".join([*values, f"repeat={run.repeat}"])
