"""Which attempt of a run the ranks work at: the first takes it, the others join."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

import psutil

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.paths import AttemptPaths, RunPaths
from hpcncf.records import claims
from hpcncf.records.claims import is_alive
from hpcncf.records.schema import Claim, RecordError, read_record
from hpcncf.worker.environment import (
    Place,
    launched_by,
    requeued,
    slurm_job_id,
)
from hpcncf.worker.signals import restart

# Ours are told through torch.distributed; a user's program need not have torch.

POLL_S: Final = 0.2
# A shared file system may take a minute to show a new folder to another node.
WITHIN_S: Final = 300.0


def joined(paths: RunPaths, rank: int, within_s: float = WITHIN_S) -> AttemptPaths:
    """The attempt that this start's first rank took, as soon as it is seen here.

    Raises HpcncfError where it does not appear.
    """
    start, deadline = (slurm_job_id(), restart()), time.monotonic() + within_s
    while True:
        for attempt in paths.attempts()[-1:]:
            if _is_of(start, attempt) and not attempt.rank(rank).exists():
                return attempt
        if time.monotonic() > deadline:
            raise HpcncfError(
                f"{paths.folder}: rank 0 has begun no attempt within {within_s:g} s: it failed "
                "(see its log), or this folder is not the same on all nodes"
            )
        time.sleep(POLL_S)


def _is_of(start: tuple[str | None, int | None], attempt: AttemptPaths) -> bool:
    try:
        claim = read_record(attempt.claim, Claim)
    except RecordError:
        return False
    same = (claim.slurm_job_id, claim.slurm_restart) == start
    return same and (start[0] is not None or is_alive(claim, attempt) or _since_we_began(claim))


def _since_we_began(claim: Claim) -> bool:
    """A program may be over, and the first rank gone, before another has looked for its attempt."""
    return datetime.fromisoformat(claim.claimed_at).timestamp() >= psutil.Process().create_time()


def all_left(attempt: AttemptPaths, world_size: int, within_s: float) -> bool:
    """Wait until every rank has left its record; False where one did not in time."""
    deadline = time.monotonic() + within_s
    while len(attempt.rank_records()) < world_size:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def take_or_join(run: Run, paths: RunPaths, place: Place, over: int) -> AttemptPaths:
    """Rank 0 takes the next attempt; the others join it first, to be told which, or why none."""
    if place.rank != 0 and run.training is None:
        return joined(paths, place.rank)
    if place.rank != 0:
        told = _answer_of_first(None, run, place)
        if isinstance(told, str):
            raise HpcncfError(told)
        return paths.attempt(told)
    holder = claims.current_claim(paths)
    if holder is not None and requeued(holder.slurm_job_id):
        over = max(over, holder.attempt)
    launched = (launched_by(), slurm_job_id())
    try:
        return claims.claim_attempt(paths, *launched, over, restart())
    except OSError as error:
        raise _refused(
            f"{error.filename}: cannot be written: {error.strerror}", run, place
        ) from None
    except claims.AlreadyRunning as taken:
        raise _refused(str(taken), run, place) from None


def _refused(problem: str, run: Run, place: Place) -> HpcncfError:
    """Without a word the other ranks would wait for the first for minutes."""
    if place.world_size > 1 and run.training is not None:
        _answer_of_first(problem, run, place)
    return HpcncfError(problem)


def _answer_of_first(value: str | None, run: Run, place: Place) -> int | str:
    """The attempt's number, or why there is none."""
    from hpcncf.ncf.distributed import gather_objects, join_group

    assert run.training is not None
    join_group(place, run.resources, run.training, run.id)
    told: int | str = gather_objects(value, place)[0]
    return told


def find_attempt(paths: RunPaths, place: Place) -> AttemptPaths | None:
    """The attempt of a rank that ends before it was told which."""
    found = claims.attempt_of_start(paths, slurm_job_id(), restart())
    return None if found is None or found.rank(place.rank).exists() else found
