"""Which attempt of a run the ranks work at: the first takes it, the others join."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import psutil

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.launcher.environment import Place, launched_by, requeued, slurm_job_id
from hpcncf.launcher.requeue import restart
from hpcncf.paths import AttemptPaths, ResultPaths, RunPaths
from hpcncf.records import claims
from hpcncf.records.claims import is_alive
from hpcncf.records.schema import Claim, End, EndReason, read_optional, utc_now
from hpcncf.state.decide import is_complete, last_attempt

POLL_S: Final = 0.2
# A shared file system may take a minute to show a new folder to another node.
WITHIN_S: Final = 300.0


def joined(paths: RunPaths, rank: int, within_s: float = WITHIN_S) -> AttemptPaths:
    """Wait until the attempt that rank 0 began at this start is visible, and return it.

    For ranks without torch.distributed. Raises HpcncfError if it does not appear.
    """
    start, deadline = (slurm_job_id(), restart()), time.monotonic() + within_s
    while True:
        for attempt in paths.attempts()[-1:]:
            if _is_of(start, attempt) and not attempt.rank(rank).exists():
                return attempt
        if time.monotonic() > deadline:
            raise HpcncfError(
                f"{paths.folder}: rank 0 started no attempt within {within_s:g} s. It failed (see "
                "its log), or this folder is not the same on all nodes"
            )
        time.sleep(POLL_S)


def _is_of(start: tuple[str | None, int | None], attempt: AttemptPaths) -> bool:
    claim = read_optional(attempt.claim, Claim)
    if claim is None:
        return False
    same = (claim.slurm_job_id, claim.slurm_restart) == start
    if not same or start[0] is not None or is_alive(claim, attempt):
        return same
    # A program may end before all have looked: one claimed after this process began is ours, too.
    return datetime.fromisoformat(claim.claimed_at).timestamp() >= psutil.Process().create_time()


def build_end(
    run: Run, attempt: AttemptPaths, reason: EndReason, exit_codes: Sequence[int | None]
) -> End:
    """Build the end record of an attempt, with the exit codes in the order of the ranks."""
    return End(
        run_id=run.id,
        attempt=attempt.number,
        reason=reason,
        exit_codes=list(exit_codes),
        ended_at=utc_now(),
    )


def all_left(attempt: AttemptPaths, world_size: int, within_s: float) -> bool:
    """Wait until every rank has written its record; return False after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while len(attempt.rank_records()) < world_size:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def needs_run(paths: ResultPaths, run: Run, again: bool) -> bool:
    """Return whether a task still has to execute this run.

    With `again`, a complete run counts as done only if this very job completed it, in this
    start or an earlier one.
    """
    attempt = last_attempt(paths.run(run.id))
    if attempt is None or not is_complete(run, attempt):
        return True
    by = attempt.claim.slurm_job_id if attempt.claim else None
    return again and by != slurm_job_id()


def take_or_join(run: Run, paths: RunPaths, place: Place, over: int) -> AttemptPaths:
    """Return the attempt for this rank: rank 0 claims the next one, the others join it.

    Rank 0 sends the attempt's number to the other ranks. Raises HpcncfError if it cannot be
    claimed.
    """
    if place.rank != 0 and run.training is None:
        return joined(paths, place.rank)
    if place.rank != 0:
        answer = _answer_of_first(None, run, place)
        if isinstance(answer, str):
            raise HpcncfError(answer)
        return paths.attempt(answer)
    claim = claims.current_claim(paths)
    if claim is not None and requeued(claim.slurm_job_id):
        over = max(over, claim.attempt)
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
    """Build the error that no attempt can be claimed, and send it to the other ranks.

    Without it, they would wait for minutes.
    """
    if place.world_size > 1 and run.training is not None:
        _answer_of_first(problem, run, place)
    return HpcncfError(problem)


def _answer_of_first(value: str | None, run: Run, place: Place) -> int | str:
    """Exchange rank 0's message: return the attempt's number, or why there is no attempt."""
    from hpcncf.ncf.distributed import gather_objects, join_group

    assert run.training is not None
    join_group(place, run.resources, run.training, run.id)
    answer: int | str = gather_objects(value, place)[0]
    return answer


def find_attempt(paths: RunPaths, place: Place) -> AttemptPaths | None:
    """Find the attempt of a rank that ends before rank 0 sent the attempt's number, or None."""
    found = claims.attempt_of_start(paths, slurm_job_id(), restart())
    return None if found is None or found.rank(place.rank).exists() else found
