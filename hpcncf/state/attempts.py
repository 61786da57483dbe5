"""What a run's attempts left so far, read from their folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from hpcncf import claims, records
from hpcncf.paths import AttemptPaths, RunPaths
from hpcncf.records import Claim, End, Progress, R, RankRecord, RecordError
from hpcncf.state.evidence import Attempt, completed

# Between making an attempt's folder and writing its claim lies an instant; on NFS, some seconds.
CLAIMING_S: Final = 30.0


def last_attempt(run: RunPaths) -> Attempt | None:
    attempts = run.attempts()
    return read_attempts(attempts[-1]) if attempts else None


def unreadable(run: RunPaths) -> str | None:
    """Why nobody can tell whether the run has attempts; None where its folder tells, or is none."""
    try:
        os.scandir(run.folder).close()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{run.folder}: cannot be read: {error.strerror}"
    return None


def read_attempts(files: AttemptPaths) -> Attempt:
    problems, there = list[str](), files.names()
    taken = _read(files.claim, Claim, problems)
    found = [_read(path, RankRecord, problems) for path in files.ranks(there)]
    ranks = [record for record in found if record]
    return Attempt(
        number=files.number,
        claim=taken,
        ranks=ranks,
        # Of thousands of runs most lack these, and to open what is not there takes its time.
        progress=_read(files.progress, Progress, problems)
        if files.progress.name in there
        else None,
        end=_read(files.end, End, problems) if files.end.name in there else None,
        alive=not completed(ranks) and _alive(taken, files),
        problems=problems,
    )


def claim(files: AttemptPaths) -> Claim | None:
    return _read(files.claim, Claim, [])


def _read(path: Path, kind: type[R], problems: list[str]) -> R | None:
    try:
        return records.read_records(path, kind)
    except RecordError as error:
        if not _missing(path):
            problems.append(str(error))
        return None


def _missing(path: Path) -> bool:
    try:
        return not path.exists()
    except PermissionError:  # a folder that we may not look into
        return False


def _alive(taken: Claim | None, files: AttemptPaths) -> bool:
    return claims.alive(taken, files) if taken else _just_made(files)


def _just_made(attempt: AttemptPaths) -> bool:
    now = claims.server_time(attempt.folder.parents[1])
    return now - attempt.folder.stat().st_mtime < CLAIMING_S
