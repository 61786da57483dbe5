"""`hpcncf status`: running, pending and failed runs, with reasons."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcncf.cli.output import counts, filled, print_json
from hpcncf.errors import UsageError, printable

if TYPE_CHECKING:
    from hpcncf.state.status import AskSlurm, RunState


EPILOG = """\
refresh every 15 s until nothing is running or pending:   hpcncf status --watch
failed runs only, equal failures once:                    hpcncf status --failures
"""
# More runs than that are counted, and only those at work get a line each.
SHORT: Final = 40
# Slurm is asked every 15 s at most; records are read as often as is wished.
EVERY_S: Final = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        metavar="RESULTS",
        help="results folders; without any, all in ./results",
    )
    parser.add_argument("--all", action="store_true", help=f"a line for every run, above {SHORT}")
    parser.add_argument("--failures", action="store_true", help="only what failed, and why")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=EVERY_S,
        metavar="S",
        help="look again every S seconds (15) until no run is under way",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"expected 1 to 86400 seconds, came {text}")
    return seconds


def run(args: argparse.Namespace) -> int:
    folders = args.results or found_here()
    if args.watch and args.json:
        raise UsageError("--watch and --json do not go together: call it again for newer JSON")
    if args.watch:
        return _watch(args, folders)
    from hpcncf.slurm.query import job_states

    if args.json:
        print_json("status", {"jobs": [_plain(folder) for folder in folders]})
        return 0
    if not folders:
        print("no results in ./results: `hpcncf submit JOB.yaml` makes some")
    for folder in folders:
        print(_describe_job(folder, *_states(folder, job_states, args.all), args))
    return 0


def found_here() -> list[Path]:
    """List all results folders below ./results."""
    return sorted(path.parent for path in Path("results").glob("*/plan.json"))


def _watch(args: argparse.Namespace, folders: Sequence[Path]) -> int:
    """Show the states again and again until no run is under way; returns exit code 0.

    A terminal is redrawn; a log gets a line whenever the states have changed.
    """
    from hpcncf.slurm.query import RateLimitedStates
    from hpcncf.state.status import UNDER_WAY

    asks = {folder: RateLimitedStates() for folder in folders}
    terminal, before = sys.stdout.isatty(), ""
    while True:
        pages, counted, under_way = list[str](), list[str](), False
        for folder in folders:
            job, states = _states(folder, asks[folder], args.all)
            pages.append(_describe_job(folder, job, states, args))
            counted.append(f"{job}: {counts(states)}")
            under_way |= any(state.state in UNDER_WAY for state in states)
        if terminal:
            print("\033[H\033[2J" + "\n".join(pages), flush=True)
        elif before != (before := "; ".join(counted)) and under_way:
            print(f"{time.strftime('%H:%M:%S')} {before}", flush=True)
        if not under_way:
            if not terminal:
                print("\n".join(pages), flush=True)
            return 0
        time.sleep(args.watch)


def _plain(folder: Path) -> dict[str, Any]:
    from hpcncf.cli.failures import plain_failures
    from hpcncf.cli.progress import plain_arrays, plain_progress
    from hpcncf.paths import ResultPaths
    from hpcncf.slurm.query import job_states

    job, states = _states(folder, job_states, True)
    return {
        "job": job,
        "results": str(folder),
        "runs": [plain_progress(state) for state in states],
        "arrays": plain_arrays(states),
        "failures": plain_failures(ResultPaths(folder), states),
    }


def _states(folder: Path, ask: AskSlurm, shows_all: bool) -> tuple[str, list[RunState]]:
    """Read a job's name and the states of its runs.

    With `shows_all` figures of ended runs are read even if there are many runs.
    """
    from hpcncf.paths import ResultPaths
    from hpcncf.records.plan_file import read_plan
    from hpcncf.records.schema import RankEnd, RankRecord
    from hpcncf.state import status

    paths = ResultPaths(folder)
    plan = read_plan(paths)
    kind = RankRecord if shows_all or len(plan.runs) <= SHORT else RankEnd
    return plan.job, status.states(paths, plan, ask, kind)


def _describe_job(
    folder: Path, job: str, states: Sequence[RunState], args: argparse.Namespace
) -> str:
    from hpcncf.cli.early import early_verdicts
    from hpcncf.cli.failures import failures_page
    from hpcncf.cli.progress import (
        describe_arrays,
        describe_stale,
        describe_too_few_cores,
        describe_unsent,
        table_progress,
    )
    from hpcncf.paths import ResultPaths

    problems = [_problem(problem) for state in states for problem in state.problems]
    failed = failures_page(ResultPaths(folder), states, args.failures)
    if args.failures:
        return "\n".join([f"{job} ({folder})", *problems, failed or "no run failed"]) + "\n"
    short = len(states) <= SHORT or args.all
    shown = states if short else [state for state in states if state.state == "running"][:SHORT]
    parts = [
        f"{job} ({folder})",
        *map(filled, describe_arrays(states)),
        table_progress(shown) if shown else "",
        *early_verdicts(ResultPaths(folder), shown),
        *problems,
        failed,
        *map(filled, describe_unsent(states)),
        *map(filled, describe_too_few_cores(states)),
        *map(filled, describe_stale(states)),
        filled(counts(states) + ("" if short else "; every run: --all")),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _problem(text: str) -> str:
    """Format a problem: Slurm that does not answer, or a file that could not be read."""
    return printable(text if text.startswith(("squeue:", "sacct:")) else f"skipped {text}")
