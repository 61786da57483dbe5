"""`hpcncf status`: what runs, what waits and why, what failed and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

HELP = "what runs, what waits and why, what failed and why"
EPILOG = """\
exit codes: 0 told, whatever the runs' state; 2 no results folder
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        metavar="RESULTS",
        help="results folders; without any, all in ./results",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    import json

    folders = args.results or found_here()
    if args.json:
        print(json.dumps({"jobs": [_plain(folder) for folder in folders]}, indent=2))
        return 0
    if not folders:
        print("no results in ./results: `hpcncf submit JOB.yaml` makes some")
    for folder in folders:
        _show(folder)
    return 0


def found_here() -> list[Path]:
    """Every results folder below ./results."""
    return sorted(path.parent for path in Path("results").glob("*/plan.json"))


def _plain(folder: Path) -> dict[str, Any]:
    from hpcncf.cli import progress

    job, states = _states(folder)
    return {
        "job": job,
        "results": str(folder),
        "runs": [progress.plain(state) for state in states],
    }


def _states(folder: Path) -> tuple[str, Any]:
    from hpcncf import status
    from hpcncf.paths import ResultPaths
    from hpcncf.results import read_plan

    paths = ResultPaths(folder)
    plan = read_plan(paths)
    return plan.job, status.states(paths, plan)


def _show(folder: Path) -> None:
    from hpcncf.cli import layout, progress

    job, states = _states(folder)
    print(f"{job} ({folder})")
    print(progress.table(states))
    for problem in (problem for state in states for problem in state.problems):
        print(f"skipped {problem}")
    for line in [*progress.stale(states), layout.counts(states)]:
        print(layout.filled(line))
    print()
