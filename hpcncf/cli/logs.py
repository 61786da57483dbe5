"""`hpcncf logs`: what a rank printed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpcncf.paths import AttemptPaths, ResultPaths

HELP = "print what a run's rank printed"
POLL_S: Final = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_id", metavar="RUN", help="the run, by its first letters")
    add("--results", type=Path, metavar="DIR", help="its results folder; default: all in ./results")
    add("--rank", type=int, default=0, metavar="N", help="default: %(default)s")
    add("--attempt", type=int, metavar="N", help="default: the last")
    add("--follow", action="store_true", help="go on printing while the run is running")
    add("--json", action="store_true", help="print the files' names as JSON, not what they hold")


def run(args: argparse.Namespace) -> int:
    import json

    from hpcncf import claims
    from hpcncf.cli import finding

    paths, _, found = finding.run(args.run_id, args.results)
    attempt, files = _chosen(paths, found.id, args.attempt, args.rank)
    if args.json:
        named = [str(file) for file in files]
        told = {"run": found.id, "attempt": attempt, "rank": args.rank, "files": named}
        print(json.dumps(told, indent=2))
        return 0
    here = paths.run(found.id)
    printed = [
        _print(file, lambda: args.follow and claims.holder(here) is not None) for file in files
    ]
    if not any(printed):
        print(f"hpcncf: rank {args.rank} printed nothing", file=sys.stderr)
    return 0


def _chosen(
    paths: ResultPaths, run_id: str, number: int | None, rank: int
) -> tuple[int | None, list[Path]]:
    """The attempt and its files; no attempt where the last Slurm job ended before it took one."""
    if number is None and (left := _of_no_attempt(paths, run_id, rank)):
        return None, left
    attempt = _attempt(paths, run_id, number)
    return attempt.number, _files(paths, attempt, rank)


def _of_no_attempt(paths: ResultPaths, run_id: str, rank: int) -> list[Path]:
    """Why it failed that early (a broken `setup`, no hpcncf on the node) stands nowhere else."""
    from hpcncf import submissions

    last = submissions.read(paths).last(run_id)
    job = last.job_of(run_id) if last and last.cluster == "slurm" else None
    attempts = paths.run(run_id).attempts()
    if job is None or any(_slurm_job_id(attempt) == job.id for attempt in attempts):
        return []
    return _of_submitit(paths, job.id, rank)


def _slurm_job_id(attempt: AttemptPaths) -> str | None:
    from hpcncf import records
    from hpcncf.records import Claim, RecordError

    try:
        return records.read(attempt.claim, Claim).slurm_job_id
    except RecordError:
        return None


def _of_submitit(paths: ResultPaths, job_id: str, rank: int) -> list[Path]:
    return sorted(paths.folder.glob(f"slurm-*/{job_id}_{rank}_log.*"))


def _attempt(paths: ResultPaths, run_id: str, number: int | None) -> AttemptPaths:
    from hpcncf.errors import UsageError

    attempts = paths.run(run_id).attempts()
    if not attempts:
        raise UsageError(f"run {run_id}: has not started, so there is no log")
    chosen = [attempt for attempt in attempts if number in (None, attempt.number)]
    if not chosen:
        known = ", ".join(str(attempt.number) for attempt in attempts)
        raise UsageError(f"run {run_id}: no attempt {number}; there are: {known}")
    return chosen[-1]


def _files(paths: ResultPaths, attempt: AttemptPaths, rank: int) -> list[Path]:
    """The local launcher's log, or submitit's two of a Slurm task."""
    from hpcncf.errors import UsageError

    if attempt.log(rank).exists():
        return [attempt.log(rank)]
    job_id = _slurm_job_id(attempt)
    if job_id and (files := _of_submitit(paths, job_id, rank)):
        return files
    ranks = ", ".join(sorted(path.stem for path in attempt.folder.glob("rank-*.log")))
    raise UsageError(
        f"{attempt.folder}: no log of rank {rank}; there are: {ranks or 'none'}. "
        "What torchrun, `hpcncf train` or `hpcncf run` starts prints to its own terminal"
    )


def _print(file: Path, more_to_come: Callable[[], bool]) -> bool:
    """Whether there was anything."""
    printed = False
    with file.open(errors="replace") as log:
        while True:
            going_on = more_to_come()
            for line in log:
                sys.stdout.write(line)
                printed = True
            sys.stdout.flush()
            if not going_on:
                return printed
            time.sleep(POLL_S)
