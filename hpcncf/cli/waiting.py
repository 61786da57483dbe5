"""Waiting for submitted runs: one moving line in a terminal, a line per change elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Final

from hpcncf import status
from hpcncf.cli import layout, progress
from hpcncf.paths import ResultPaths
from hpcncf.results import read_plan
from hpcncf.status import RunState

# `unknown`: Slurm's accounting is some seconds behind, and may not know a new job yet.
UNFINISHED: Final = ("pending", "running", "unknown")
POLL_S: Final = 2.0


def wait(paths: ResultPaths, run_ids: Sequence[str], quiet: bool = False) -> int:
    """Return when none of the runs is under way: 0 when all are complete, else 3."""
    try:
        states = _watch(paths, run_ids, quiet)
    except KeyboardInterrupt:
        there = layout.shown(paths.folder)
        print(f"\nthe runs go on; to end them: hpcncf cancel --all {there}", file=sys.stderr)
        raise
    if not quiet:
        _outcome(states)
    return 0 if all(state.state == "completed" for state in states) else 3


def _watch(paths: ResultPaths, run_ids: Sequence[str], quiet: bool) -> list[RunState]:
    """Only what is under way is read again: a local run is being measured meanwhile."""
    terminal, told = sys.stdout.isatty() and not quiet, dict[str, str]()
    found, open_ids = dict[str, RunState](), set(run_ids)
    while open_ids:
        now = _of(paths, open_ids)
        found |= {state.run.id: state for state in now}
        open_ids = {state.run.id for state in now if state.state in UNFINISHED}
        states = [found[run_id] for run_id in run_ids if run_id in found]
        if terminal:
            _moving_line(states)
        elif not quiet:
            _changes(states, told)
        if open_ids:
            time.sleep(POLL_S)
    if terminal:
        print("\r\033[K", end="")
    return [found[run_id] for run_id in run_ids if run_id in found]


def _of(paths: ResultPaths, run_ids: set[str]) -> list[RunState]:
    plan = read_plan(paths)
    asked = [run for run in plan.runs if run.id in run_ids]
    return status.states(paths, plan.model_copy(update={"runs": asked}))


def _moving_line(states: Sequence[RunState]) -> None:
    done = sum(state.state not in UNFINISHED for state in states)
    bar = "#" * (20 * done // len(states))
    line = f"[{bar:20}] {done}/{len(states)}"
    for state in [state for state in states if state.state == "running"][:1]:
        line += f"  {layout.varies(state.run)}: {progress.sentence(state)}"
    print(f"\r\033[K{line[: layout.width() - 1]}", end="", flush=True)


def _changes(states: Sequence[RunState], told: dict[str, str]) -> None:
    done = sum(state.state not in UNFINISHED for state in states)
    for state in states:
        if state.state in ("pending", "unknown") or told.get(state.run.id) == state.state:
            continue
        told[state.run.id] = state.state
        what = f"{state.run.id[: layout.ID]} {layout.varies(state.run)}".rstrip()
        said = "" if state.state == "running" else progress.sentence(state)
        line = f"[{done}/{len(states)}] {what}: {state.state}{', ' * bool(said)}{said}"
        print(line, flush=True)


def _outcome(states: Sequence[RunState]) -> None:
    short = [state for state in states if state.state != "completed"]
    if short:
        print(progress.table(short))
    if states:
        print(layout.counts(states))
