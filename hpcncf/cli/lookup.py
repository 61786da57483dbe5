"""Find a run by the first letters of its id."""

from __future__ import annotations

from pathlib import Path

from hpcncf.cli.status import found_here
from hpcncf.errors import UsageError
from hpcncf.job.plan import Plan, Run
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan

FoundRun = tuple[ResultPaths, Plan, Run]


def folders_of(results: Path | None) -> list[Path]:
    """List the given results folder, or all results folders below ./results."""
    return [results] if results else found_here()


def run(run_id: str, results: Path | None) -> FoundRun:
    """Find the run whose id begins with `run_id`. Raises UsageError for none or several."""
    folders = folders_of(results)
    found: list[FoundRun] = []
    for folder in folders:
        paths = ResultPaths(folder.resolve())
        plan = read_plan(paths)
        found += [(paths, plan, run) for run in plan.runs if run.id.startswith(run_id)]
    if len(found) == 1:
        return found[0]
    where = ", ".join(str(folder) for folder in folders) or "./results (which has no results)"
    if not found and (Path(run_id) / "plan.json").exists():
        raise UsageError(
            f"{run_id} is a results folder, not a run: `hpcncf status {run_id}` lists its runs"
        )
    if not found:
        raise UsageError(f"run {run_id!r}: not in {where}; `hpcncf status` lists the runs")
    several = ", ".join(f"{run.id} in {paths.folder.name}" for paths, _, run in found[:6])
    alike = len({run.id for _, _, run in found}) == 1
    way = "--results DIR" if alike else "more letters, or --results DIR"
    raise UsageError(f"run {run_id!r}: several begin so: {several}; {way}")
