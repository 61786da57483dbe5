"""Where a run's ranks printed: the local launcher's logs, or submitit's of a Slurm job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from hpcncf.paths import AttemptPaths, ResultPaths

LONGEST_TAIL: Final = 64 * 1024
# `srun: error: node1: task 1: Killed`. What ended a step comes first; then srun ends the others.
OF_A_TASK: Final = re.compile(r"^srun: error: ([^\s:]+): tasks? ([\d,-]+): (.+?)\s*$", re.MULTILINE)
ENDS_OTHERS: Final = re.compile(r"^srun: .*\bTerminating StepId=.*", re.MULTILINE)
STARVED: Final = "Out Of Memory"


def of_slurm(paths: ResultPaths, job_id: str, rank: int) -> list[Path]:
    """submitit's two files, the one of errors last; a requeued job goes on in the same ones."""
    found = paths.folder.glob(f"slurm-*/{job_id}_{rank}_log.*")
    return sorted(found, key=lambda file: (file.suffix == ".err", file))


def of_script(paths: ResultPaths, user: str, job_id: str) -> Path:
    """Where the batch script's errors are, and srun's: with those of rank 0."""
    return paths.submitit(user) / f"{job_id}_0_log.err"


def srun_said(path: Path) -> str:
    """`task 1 on node1: Killed`: what ended the job's last step; empty where srun said nothing.

    Raises OSError.
    """
    told = _end_of(path)
    before = ENDS_OTHERS.split(told)[:-1]
    found = OF_A_TASK.findall(before[-1] if before else told)
    return "task {1} on {0}: {2}".format(*found[-1]) if found else ""


def of_attempt(
    paths: ResultPaths, attempt: AttemptPaths, job_id: str | None, rank: int
) -> list[Path]:
    if attempt.log(rank).exists():
        return [attempt.log(rank)]
    return of_slurm(paths, job_id, rank) if job_id else []


def tail(path: Path, lines: int) -> list[str]:
    """The file's last lines that are not empty."""
    return [line.rstrip() for line in _end_of(path).splitlines() if line.strip()][-lines:]


def _end_of(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(log.tell() - LONGEST_TAIL, 0))
        return log.read().decode(errors="replace")
