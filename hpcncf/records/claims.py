"""Claim the next attempt at a run, so that one process works at it at a time."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.errors import HpcncfError
from hpcncf.paths import AttemptPaths, RunPaths
from hpcncf.records.plain import RecordError, plain_record, utc_now, write_plain_with_retries

if TYPE_CHECKING:
    from hpcncf.records.schema import Claim

# A rank rewrites progress.json every few seconds and node-N.json every ten. A process on another
# machine that has been silent this long is presumed dead.
HEARTBEAT_TIMEOUT_S = 120.0
# How often the file server's clock is read.
CLOCK_CHECK_S = 600.0


class AlreadyRunning(HpcncfError):
    """Another process runs, begins or has just completed the run."""


def claim_attempt(
    paths: RunPaths,
    launched_by: str,
    slurm_job_id: str | None = None,
    over: int = 0,
    slurm_restart: int | None = None,
) -> AttemptPaths:
    """Claim the run's next attempt for this process.

    Attempts up to number `over` are known to have ended, whatever heartbeats they left. Raises
    AlreadyRunning if another process has the run: of any number of processes at once, one gets an
    attempt, since its folder appears with the claim inside.
    """
    attempts = paths.attempts()
    held = current_claim(paths)
    if held is not None and held.attempt > over:
        raise AlreadyRunning(
            f"run {held.run_id}: already running as process {held.pid} on {held.node} since "
            f"{held.claimed_at} (attempt {held.attempt}). Wait for it, or cancel it with "
            "`hpcncf cancel`"
        )
    attempt = paths.attempt(attempts[-1].number + 1 if attempts else 1)
    run_id = paths.folder.name
    claim = plain_record(
        "claim",
        run_id,
        attempt.number,
        node=os.uname().nodename,
        pid=os.getpid(),
        process_started=process_start(os.getpid()),
        claimed_at=utc_now(),
        launched_by=launched_by,
        slurm_job_id=slurm_job_id,
        slurm_restart=slurm_restart,
    )
    partial = AttemptPaths(paths.folder / f".{os.urandom(16).hex()}")
    try:
        write_plain_with_retries(partial.claim, claim)
        partial.folder.rename(attempt.folder)  # fails if that folder exists and holds a claim
    except OSError as error:
        shutil.rmtree(partial.folder, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise AlreadyRunning(f"run {run_id}: another process just began it") from None
        if error.errno == errno.ENOENT:  # completing a run removes unfinished folders
            raise AlreadyRunning(f"run {run_id}: another process just completed it") from None
        raise
    return attempt


def current_claim(paths: RunPaths) -> Claim | None:
    """Return the claim of the process that works at the run now; None if it has ended."""
    attempts = paths.attempts()
    if not attempts or attempts[-1].end.exists() or attempts[-1].rank(0).exists():
        return None
    claim = _last_claim(attempts)
    return claim if claim is not None and is_alive(claim, attempts[-1]) else None


def attempt_of_start(
    paths: RunPaths, slurm_job_id: str | None, restart: int | None
) -> AttemptPaths | None:
    """Return the attempt that this start of a Slurm job has already claimed, or None."""
    attempts = paths.attempts()
    if slurm_job_id is None or not attempts:
        return None
    claim = _last_claim(attempts)
    if claim is None or (claim.slurm_job_id, claim.slurm_restart) != (slurm_job_id, restart):
        return None
    return attempts[-1]


def _last_claim(attempts: list[AttemptPaths]) -> Claim | None:
    from hpcncf.records.schema import Claim, read_record

    try:
        return read_record(attempts[-1].claim, Claim)
    except RecordError:
        return None


def later_attempt(paths: RunPaths, attempt: AttemptPaths) -> int | None:
    """Return the number of a later attempt, which took this one for dead; None if there is none."""
    last = paths.attempts()[-1:]
    return last[0].number if last and last[0].number > attempt.number else None


def is_alive(claim: Claim, attempt: AttemptPaths) -> bool:
    """Return whether the claiming process is alive; on another machine, whether it still writes."""
    if claim.node == os.uname().nodename:
        return is_same_process(claim.pid, claim.process_started)
    heartbeats = [attempt.progress, attempt.claim, *attempt.node_records()]
    now = server_time(attempt.folder.parents[1])
    changes = filter(None, map(_modified, heartbeats))
    return any(now - changed < HEARTBEAT_TIMEOUT_S for changed in changes)


def server_time(folder: Path) -> float:
    """Return the time by the clock of the folder's file server, or ours if it is not writable."""
    now = time.monotonic()  # ours may be set meanwhile
    return now + _server_ahead_s(folder, int(now / CLOCK_CHECK_S))


@lru_cache(maxsize=64)
def _server_ahead_s(folder: Path, _when: int) -> float:
    try:
        with tempfile.TemporaryFile(dir=folder) as new:
            return os.fstat(new.fileno()).st_mtime - time.monotonic()
    except OSError:
        return time.time() - time.monotonic()


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def process_start(pid: int) -> float:
    """Return when a process started, in seconds since boot; other than on Linux, since 1970.

    A change of the machine's clock does not move it. Raises NoSuchProcess.
    """
    with suppress(OSError):
        after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
        return int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")
    import psutil

    return psutil.Process(pid).create_time()


def is_same_process(pid: int, started: float) -> bool:
    """Return whether process `pid`, started at that time, is alive; process numbers are reused."""
    import psutil

    try:
        process = psutil.Process(pid)
        # Records of 0.1.0 hold seconds since 1970.
        known = process.create_time() if started > 1e9 else process_start(pid)
        return abs(known - started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
