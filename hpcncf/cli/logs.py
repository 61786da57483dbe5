"""`hpcncf logs`: print the output of a run's rank."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcncf.cli.output import print_json, warn

if TYPE_CHECKING:
    from hpcncf.job.plan import Run
    from hpcncf.paths import AttemptPaths, ResultPaths

POLL_S: Final = 0.5
# How often it is looked whether the run still goes on.
GOES_ON_S: Final = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_id", metavar="RUN", help="the run, by its first letters")
    add("--results", type=Path, metavar="DIR", help="its results folder; default: all in ./results")
    add("--rank", type=int, default=0, metavar="N", help="default: %(default)s")
    add("--attempt", type=int, metavar="N", help="default: the last")
    add("--follow", action="store_true", help="go on printing while the run is running")
    add("--json", action="store_true", help="print the files' names as JSON, not what they hold")


def run(args: argparse.Namespace) -> int:
    from hpcncf.cli import lookup

    paths, _, found = lookup.run(args.run_id, args.results)
    attempt, files = _select_attempt(paths, found.id, args.attempt, args.rank)
    if args.json:
        named = [str(file) for file in files]
        plain = {"run": found.id, "attempt": attempt, "rank": args.rank, "files": named}
        print_json("logs", plain)
        return 0
    printed = _print(files, _goes_on(paths, found) if args.follow else lambda: False)
    if not printed:
        warn(f"rank {args.rank} printed nothing")
    elif number := _in_one_log(paths, found.id, files):
        warn(f"{number} runs of one Slurm task printed this")
    return 0


def _in_one_log(paths: ResultPaths, run_id: str, files: list[Path]) -> int:
    """Number of runs whose output shares this run's log; 0 if the log is its alone."""
    from hpcncf.records.submissions import read_submissions

    last = read_submissions(paths).last(run_id)
    job = last.job_of(run_id) if last and last.cluster == "slurm" else None
    shared = job is not None and any(file.name.startswith(f"{job.id}_") for file in files)
    return len(job.runs) if job and shared and len(job.runs) > 1 else 0


def _select_attempt(
    paths: ResultPaths, run_id: str, number: int | None, rank: int
) -> tuple[int | None, list[Path]]:
    """Select an attempt's number and the log files of a rank.

    The number is None if the last Slurm job has not started an attempt.
    """
    if number is None and (left := _files_without_attempt(paths, run_id, rank)):
        return None, left
    attempt = _attempt(paths, run_id, number)
    return attempt.number, _files(paths, attempt, rank)


def _files_without_attempt(paths: ResultPaths, run_id: str, rank: int) -> list[Path]:
    """Log files of the run's last Slurm job if it failed before it began an attempt.

    Causes are a broken `setup` of the site, or a missing hpcncf.
    """
    from hpcncf.records.submissions import read_submissions
    from hpcncf.state.decide import slurm_logs

    last = read_submissions(paths).last(run_id)
    job = last.job_of(run_id) if last and last.cluster == "slurm" else None
    attempts = paths.run(run_id).attempts()
    if job is None or any(_slurm_job_id(attempt) == job.id for attempt in attempts):
        return []
    return slurm_logs(paths, job.id, rank)


def _slurm_job_id(attempt: AttemptPaths) -> str | None:
    from hpcncf.state import decide

    claim = decide.read_claim(attempt)
    return claim.slurm_job_id if claim else None


def _attempt(paths: ResultPaths, run_id: str, number: int | None) -> AttemptPaths:
    from hpcncf.errors import UsageError

    attempts = paths.run(run_id).attempts()
    if not attempts:
        raise UsageError(
            f"run {run_id}: has not started, so there is no log{_waits(paths, run_id)}"
        )
    chosen = [attempt for attempt in attempts if number in (None, attempt.number)]
    if not chosen:
        known = ", ".join(str(attempt.number) for attempt in attempts)
        raise UsageError(f"run {run_id}: no attempt {number}; there are: {known}")
    return chosen[-1]


def _waits(paths: ResultPaths, run_id: str) -> str:
    """Describe the state of a run without attempts: `; it is pending: (Priority)`."""
    from hpcncf.records.plan_file import read_plan
    from hpcncf.state import status

    plan = read_plan(paths)
    only = plan.model_copy(update={"runs": [run for run in plan.runs if run.id == run_id]})
    (state,) = status.states(paths, only)
    return f"; it is {state.state}" + (f": {state.reason}" if state.reason else "")


def _files(paths: ResultPaths, attempt: AttemptPaths, rank: int) -> list[Path]:
    """Log files of a rank: one of the local launcher, or two that submitit wrote.

    Raises UsageError if there is none.
    """
    from hpcncf.errors import UsageError
    from hpcncf.state.decide import attempt_logs

    files = attempt_logs(paths, attempt, _slurm_job_id(attempt), rank)
    if files:
        return files
    ranks = ", ".join(sorted(path.stem for path in attempt.folder.glob("rank-*.log")))
    raise UsageError(
        f"{attempt.folder}: no log of rank {rank}; there are: {ranks or 'none'}. "
        "What torchrun, `python -m hpcncf.worker` or `hpcncf run` starts prints to its own terminal"
    )


def _goes_on(paths: ResultPaths, run: Run) -> Callable[[], bool]:
    """Build a function that tells whether the run is still queued or running."""
    from hpcncf.records.plan_file import read_plan
    from hpcncf.slurm.query import RateLimitedStates
    from hpcncf.state import status

    only = read_plan(paths).model_copy(update={"runs": [run]})
    ask, last = RateLimitedStates(), (0.0, True)

    def goes_on() -> bool:
        nonlocal last
        if time.monotonic() - last[0] > GOES_ON_S or not last[0]:
            (state,) = status.states(paths, only, ask)
            last = time.monotonic(), state.state in status.UNDER_WAY
        return last[1]

    return goes_on


def _print(files: list[Path], more_to_come: Callable[[], bool]) -> bool:
    """Print all files, following them while more is to come; returns whether any had text."""
    printed = False
    logs = [file.open(errors="replace") for file in files]
    try:
        while True:
            going_on = more_to_come()
            for log in logs:
                for line in log:
                    sys.stdout.write(line)
                    printed = True
            sys.stdout.flush()
            if not going_on:
                return printed
            time.sleep(POLL_S)
    finally:
        for log in logs:
            log.close()
