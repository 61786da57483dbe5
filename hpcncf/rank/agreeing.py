"""Which attempt a command's ranks are: the first one takes it, the others read its claim.

Ours are told through torch.distributed; a user's program need not have torch.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

import psutil

from hpcncf import claims, records
from hpcncf.errors import HpcncfError
from hpcncf.paths import AttemptPaths, RunPaths
from hpcncf.rank import launcher, requeue
from hpcncf.records import Claim, RecordError

POLL_S: Final = 0.2
# A shared file system may take a minute to show a new folder to another node.
WITHIN_S: Final = 300.0


def joined(paths: RunPaths, rank: int, within_s: float = WITHIN_S) -> AttemptPaths:
    """The attempt that this start's first rank took, as soon as it is seen here.

    Raises HpcncfError where it does not appear.
    """
    start, deadline = (launcher.slurm_job_id(), requeue.restart()), time.monotonic() + within_s
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
        claim = records.read_records(attempt.claim, Claim)
    except RecordError:
        return False
    same = (claim.slurm_job_id, claim.slurm_restart) == start
    return same and (start[0] is not None or claims.alive(claim, attempt) or _since_we_began(claim))


def _since_we_began(claim: Claim) -> bool:
    """A program may be over, and the first rank gone, before another has looked for its attempt."""
    return datetime.fromisoformat(claim.claimed_at).timestamp() >= psutil.Process().create_time()


def all_left(attempt: AttemptPaths, world_size: int, within_s: float) -> bool:
    """Wait until every rank has left its record; False where one did not in time."""
    deadline = time.monotonic() + within_s
    while len(attempt.ranks()) < world_size:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
