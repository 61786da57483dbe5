"""One task at a time works at a run: taking its next attempt, and who holds it now."""

from __future__ import annotations

import os
import time

import psutil

from hpcncf import records
from hpcncf.records import AttemptPaths, Claim, RunPaths

# A rank rewrites progress.json every few seconds; on another machine silence this long is death.
SILENT_S = 120.0


def take(paths: RunPaths, launched_by: str, slurm_job_id: str | None = None) -> AttemptPaths:
    """Take the run's next attempt for this process: making its folder is the claim.

    Whether an earlier attempt is still at work is for the caller to ask (`holder`).
    """
    paths.folder.mkdir(parents=True, exist_ok=True)
    while True:
        taken = paths.attempts()
        attempt = paths.attempt(taken[-1].number + 1 if taken else 1)
        try:
            attempt.folder.mkdir()
        except FileExistsError:
            continue  # another process was faster: that number is theirs
        break
    claim = Claim(
        run_id=paths.folder.name,
        attempt=attempt.number,
        node=os.uname().nodename,
        pid=os.getpid(),
        process_started=psutil.Process().create_time(),
        claimed_at=records.now(),
        launched_by=launched_by,
        slurm_job_id=slurm_job_id,
    )
    records.write(attempt.claim, claim)
    return attempt


def holder(paths: RunPaths) -> Claim | None:
    """Who works at the run now; None when nobody does, or the last attempt has ended."""
    attempts = paths.attempts()
    if not attempts or attempts[-1].end.exists():
        return None
    try:
        claim = records.read(attempts[-1].claim, Claim)
    except records.RecordError:
        return None
    if attempts[-1].rank(0).exists():
        return None
    return claim if alive(claim, attempts[-1]) else None


def alive(claim: Claim, attempt: AttemptPaths) -> bool:
    """Whether the process that claimed still lives; on another machine, whether it still writes."""
    if claim.node == os.uname().nodename:
        return same_process(claim.pid, claim.process_started)
    signs = [path for path in (attempt.progress, attempt.claim) if path.exists()]
    return any(time.time() - path.stat().st_mtime < SILENT_S for path in signs)


def same_process(pid: int, started: float) -> bool:
    """True while the process `pid` that started then lives; a later one of its number is not it."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
