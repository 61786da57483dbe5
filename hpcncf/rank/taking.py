"""Which attempt this rank is of: the first rank takes the next one, the others are told."""

from __future__ import annotations

from hpcncf import claims
from hpcncf.errors import HpcncfError
from hpcncf.paths import AttemptPaths, RunPaths
from hpcncf.plan import Run
from hpcncf.rank import agreeing, launcher, requeue
from hpcncf.rank.launcher import Place


def take(run: Run, paths: RunPaths, place: Place, over: int) -> AttemptPaths:
    """Rank 0 takes the next attempt; the others join it first, to be told which, or why none."""
    if place.rank != 0 and run.training is None:
        return agreeing.joined(paths, place.rank)
    if place.rank != 0:
        told = _told_by_first(None, run, place)
        if isinstance(told, str):
            raise HpcncfError(told)
        return paths.attempt(told)
    holder = claims.holder(paths)
    if holder is not None and launcher.requeued(holder.slurm_job_id):
        over = max(over, holder.attempt)
    launched = (launcher.launched_by(), launcher.slurm_job_id())
    try:
        return claims.take(paths, *launched, over, requeue.restart())
    except OSError as error:
        raise _refused(
            f"{error.filename}: cannot be written: {error.strerror}", run, place
        ) from None
    except claims.Taken as taken:
        raise _refused(str(taken), run, place) from None


def _refused(problem: str, run: Run, place: Place) -> HpcncfError:
    """Without a word the other ranks would wait for the first for minutes."""
    if place.world_size > 1 and run.training is not None:
        _told_by_first(problem, run, place)
    return HpcncfError(problem)


def _told_by_first(value: str | None, run: Run, place: Place) -> int | str:
    """The attempt's number, or why there is none."""
    from hpcncf.ncf import distributed

    assert run.training is not None
    distributed.join(place, run.resources, run.training, run.id)
    told: int | str = distributed.gathered(value, place)[0]
    return told


def found(paths: RunPaths, place: Place) -> AttemptPaths | None:
    """The attempt of a rank that ends before it was told which."""
    found = claims.of_start(paths, launcher.slurm_job_id(), requeue.restart())
    return None if found is None or found.rank(place.rank).exists() else found
