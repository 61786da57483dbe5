"""Where a run's ranks printed: the local launcher's logs, or submitit's of a Slurm job."""

from __future__ import annotations

from pathlib import Path

from hpcncf.paths import AttemptPaths, ResultPaths

LONGEST_TAIL = 64 * 1024


def of_slurm(paths: ResultPaths, job_id: str, rank: int) -> list[Path]:
    """submitit's two files, the one of errors last; a requeued job goes on in the same ones."""
    found = paths.folder.glob(f"slurm-*/{job_id}_{rank}_log.*")
    return sorted(found, key=lambda file: (file.suffix == ".err", file))


def of_attempt(
    paths: ResultPaths, attempt: AttemptPaths, job_id: str | None, rank: int
) -> list[Path]:
    if attempt.log(rank).exists():
        return [attempt.log(rank)]
    return of_slurm(paths, job_id, rank) if job_id else []


def tail(path: Path, lines: int) -> list[str]:
    """The file's last lines that are not empty."""
    with path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(log.tell() - LONGEST_TAIL, 0))
        text = log.read().decode(errors="replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
