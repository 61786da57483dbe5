"""Claims: which process works at an attempt, and whether it is alive."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

import psutil

from hpcncf.errors import HpcncfError
from hpcncf.paths import AttemptPaths, RunPaths
from hpcncf.records.schema import Claim, RecordError, utc_now, read_record, write_record_with_retries

# While it trains a rank rewrites progress.json every few seconds, and all along node-N.json every
# ten; on another machine silence this long is death.
HEARTBEAT_TIMEOUT_S = 120.0
# How far the file server's clock is from ours is looked at this often.
CLOCK_CHECK_S = 600.0


class AlreadyRunning(HpcncfError):
    """Another process works at the run, or was faster to begin."""


def claim_attempt(
    paths: RunPaths,
    launched_by: str,
    slurm_job_id: str | None = None,
    over: int = 0,
    slurm_restart: int | None = None,
) -> AttemptPaths:
    """Take the run's next attempt for this process.

    Attempts up to number `over` are known to have ended, whatever signs of life they left. The
    attempt's folder appears with its claim inside, and only where no other has taken that number:
    of any number of processes at once, one gets it. Raises Taken in all others.
    """
    attempts = paths.attempts()
    held = current_claim(paths)
    if held is not None and held.attempt > over:
        raise AlreadyRunning(
            f"run {held.run_id}: process {held.pid} on {held.node} works at it since "
            f"{held.claimed_at} (attempt {held.attempt}): wait for it, or `hpcncf cancel`"
        )
    attempt = paths.attempt(attempts[-1].number + 1 if attempts else 1)
    claim = Claim(
        run_id=paths.folder.name,
        attempt=attempt.number,
        node=os.uname().nodename,
        pid=os.getpid(),
        process_started=psutil.Process().create_time(),
        claimed_at=utc_now(),
        launched_by=launched_by,
        slurm_job_id=slurm_job_id,
        slurm_restart=slurm_restart,
    )
    made = AttemptPaths(paths.folder / f".{uuid4().hex}")
    try:
        write_record_with_retries(made.claim, claim)
        made.folder.rename(attempt.folder)  # refused where that folder is and holds a claim
    except OSError as error:
        shutil.rmtree(made.folder, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise AlreadyRunning(f"run {claim.run_id}: another process just began it") from None
        if error.errno == errno.ENOENT:  # who completes a run clears away what is half made
            raise AlreadyRunning(f"run {claim.run_id}: another process just completed it") from None
        raise
    return attempt


def current_claim(paths: RunPaths) -> Claim | None:
    """Who works at the run now; None when nobody does, or the last attempt has ended."""
    attempts = paths.attempts()
    if not attempts or attempts[-1].end.exists():
        return None
    try:
        claim = read_record(attempts[-1].claim, Claim)
    except RecordError:
        return None
    if attempts[-1].rank(0).exists():
        return None
    return claim if is_alive(claim, attempts[-1]) else None


def attempt_of_start(
    paths: RunPaths, slurm_job_id: str | None, restart: int | None
) -> AttemptPaths | None:
    """The attempt that the first rank of this start of a job took, for one that was not told."""
    attempts = paths.attempts()
    if slurm_job_id is None or not attempts:
        return None
    try:
        claim = read_record(attempts[-1].claim, Claim)
    except RecordError:
        return None
    theirs = (claim.slurm_job_id, claim.slurm_restart)
    return attempts[-1] if theirs == (slurm_job_id, restart) else None


def later_attempt(paths: RunPaths, attempt: AttemptPaths) -> int | None:
    """The number of a later attempt, if there is one: whoever began it took this one for ended."""
    last = paths.attempts()[-1:]
    return last[0].number if last and last[0].number > attempt.number else None


def is_alive(claim: Claim, attempt: AttemptPaths) -> bool:
    """Whether the process that claimed still lives; on another machine, whether it still writes."""
    if claim.node == os.uname().nodename:
        return is_same_process(claim.pid, claim.process_started)
    signs = [attempt.progress, attempt.claim, *attempt.nodes()]
    now = server_time(attempt.folder.parents[1])
    return any(now - changed < HEARTBEAT_TIMEOUT_S for changed in map(_changed, signs) if changed)


def server_time(folder: Path) -> float:
    """Now, by the clock that gives the folder's files their times; ours where we may not write."""
    now = time.time()
    return now + _ahead_s(folder, int(now / CLOCK_CHECK_S))


@lru_cache(maxsize=64)
def _ahead_s(folder: Path, _when: int) -> float:
    try:
        with tempfile.TemporaryFile(dir=folder) as new:
            return os.fstat(new.fileno()).st_mtime - time.time()
    except OSError:
        return 0.0


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def is_same_process(pid: int, started: float) -> bool:
    """True while the process `pid` that started then lives; a later one of its number is not it."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
