"""Plan engine rowwise where the compiled engine native is not available."""

from __future__ import annotations

from typing import Any, Final

from hpcncf.job.expand import grid_points
from hpcncf.job.spec import JobSpec
from hpcncf.native.builds import NotBuilt, load_library

ENGINE: Final = "training.engine"


def missing_native_engine(job: JobSpec) -> str | None:
    """Reason why the requested engine native is not available; None if all is well."""
    engines = [
        job.training.engine,
        *job.grid.get(ENGINE, []),
        *(point.get(ENGINE) for point in job.points),
    ]
    if job.workload != "ncf" or "native" not in engines:
        return None
    try:
        load_library()
    except NotBuilt as missing:
        return missing.reason
    return None


def describe_engine_fallback(reason: str) -> str:
    return (
        f"{reason}: falling back to engine rowwise (same results, slower); the runs are recorded "
        "as rowwise. Install g++ and reinstall hpcncf to get the native engine"
    )


def with_engine_fallback(job: JobSpec, reason: str | None) -> JobSpec:
    """Replace engine native by rowwise in the job if there is a `reason`.

    A run's id, its record and the tables then name the engine that really trains it. Once the
    native engine is available, the job file gives other runs.
    """
    if reason is None:
        return job

    def available(engine: Any) -> Any:
        return "rowwise" if engine == "native" else engine

    # Expanded to points, since `exclude` may name the engine that the job file has.
    points = [
        point | {ENGINE: available(point[ENGINE])} if ENGINE in point else point
        for point in grid_points(job)
    ]
    expanded = {"grid": {}, "exclude": [], "points": points} if points != [{}] else {}
    training = job.training.model_copy(update={"engine": available(job.training.engine)})
    return job.model_copy(update={"training": training, **expanded})
