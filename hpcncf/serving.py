"""Engine rowwise serves where the native one cannot be had: in the plan, so that ids tell it."""

from __future__ import annotations

from typing import Any

from hpcncf import plan as planning
from hpcncf.ncf.native import library
from hpcncf.spec import JobSpec

KEY = "training.engine"


def problem(job: JobSpec) -> str | None:
    """Why engine native, which the job asks for, cannot be had here."""
    if not _asks(job):
        return None
    try:
        library.load()
    except library.NotBuilt as missing:
        return missing.reason
    return None


def told(reason: str) -> str:
    return (
        f"{reason}: engine rowwise serves, which gives the same results, slower; these runs are "
        "rowwise ones. Install g++ and hpcncf again for the native engine"
    )


def served(job: JobSpec, reason: str | None) -> JobSpec:
    """The job with engine rowwise for the native one, where there is a `reason`.

    A run's id, its record and the tables then name the engine that really trains it; once the
    native one is there, the job file asks for other runs.
    """
    if reason is None:
        return job
    # Point by point: what `exclude` leaves out by the engine's name is left out before.
    points = [
        {key: _other(value) if key == KEY else value for key, value in point.items()}
        for point in planning.points_plan(job)
    ]
    several = {"grid": {}, "exclude": [], "points": points} if points != [{}] else {}
    changed = job.training.model_copy(update={"engine": _other(job.training.engine)})
    return job.model_copy(update={"training": changed, **several})


def _asks(job: JobSpec) -> bool:
    points = [job.training.engine, *job.grid.get(KEY, []), *(each.get(KEY) for each in job.points)]
    return job.workload == "ncf" and "native" in points


def _other(engine: Any) -> Any:
    return "rowwise" if engine == "native" else engine
