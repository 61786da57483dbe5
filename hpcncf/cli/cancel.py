"""`hpcncf cancel`: cancel runs, queued or running."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcncf.cli.output import print_json

if TYPE_CHECKING:
    from hpcncf.job.plan import Plan, Run
    from hpcncf.paths import ResultPaths

EPILOG = """\
one run, by the first letters of its id:   hpcncf cancel 4f2a1b9c
all runs of a job:                         hpcncf cancel --all results/demo
Records and checkpoints stay.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="+",
        metavar="RUN|RESULTS",
        help="runs by their first letters; with --all, folders",
    )
    parser.add_argument("--all", action="store_true", help="all runs of these results folders")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where to look for the runs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of sentences")


def run(args: argparse.Namespace) -> int:
    from hpcncf.launch import cancel

    ended = [
        (paths, state)
        for paths, plan, runs in _selected_runs(args)
        for state in cancel.cancel(paths, plan, runs)
    ]
    if args.json:
        cancelled = [
            {"results": str(paths.folder), "id": state.run.id, "was": state.state}
            for paths, state in ended
        ]
        print_json("cancel", {"cancelled": cancelled})
        return 0
    for _, state in ended:
        print(f"{state.run.id} cancelled (was {state.state})")
    if not ended:
        print("nothing to cancel: none of these runs is queued or running")
    return 0


def _selected_runs(args: argparse.Namespace) -> list[tuple[ResultPaths, Plan, list[Run]]]:
    """Find the runs that the arguments name, grouped by results folder."""
    from hpcncf.cli import lookup
    from hpcncf.errors import UsageError
    from hpcncf.paths import ResultPaths
    from hpcncf.records.plan_file import read_plan

    if args.all:
        folders = [ResultPaths(Path(name).resolve()) for name in args.what]
        return [(paths, plan := read_plan(paths), plan.runs) for paths in folders]
    for name in args.what:
        if "/" in name or (Path(name) / "plan.json").exists():
            raise UsageError(f"{name}: a folder needs --all: hpcncf cancel --all {name}")
    grouped: dict[Path, tuple[ResultPaths, Plan, list[Run]]] = {}
    for run_id in args.what:
        paths, plan, run = lookup.run(run_id, args.results)
        grouped.setdefault(paths.folder, (paths, plan, []))[2].append(run)
    return list(grouped.values())
