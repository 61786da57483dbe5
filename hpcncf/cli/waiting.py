"""Waiting for submitted runs: one moving line in a terminal, a line per change elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Final

from hpcncf import status
from hpcncf.cli import layout, progress
from hpcncf.collect import read_plan
from hpcncf.records import ResultPaths
from hpcncf.status import RunState

# `unknown`: Slurm's accounting is some seconds behind, and may not know a new job yet.
UNFINISHED: Final = ("pending", "running", "unknown")
POLL_S: Final = 1.0


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
    terminal, told = sys.stdout.isatty() and not quiet, dict[str, str]()
    states = _of(paths, run_ids)
    while any(state.state in UNFINISHED for state in states):
        if terminal:
            _moving_line(states)
        elif not quiet:
            _changes(states, told)
        time.sleep(POLL_S)
        states = _of(paths, run_ids)
    if terminal:
        print("\r\033[K", end="")
    elif not quiet:
        _changes(states, told)
    return states


def _of(paths: ResultPaths, run_ids: Sequence[str]) -> list[RunState]:
    asked = set(run_ids)
    return [state for state in status.states(paths, read_plan(paths)) if state.run.id in asked]


def _moving_line(states: Sequence[RunState]) -> None:
    done = sum(state.state not in UNFINISHED for state in states)
    bar = "#" * (20 * done // len(states))
    line = f"[{bar:20}] {done}/{len(states)}"
    for state in [state for state in states if state.state == "running"][:1]:
        line += f"  {layout.varies(state.run)}: {progress.sentence(state)}"
    print(f"\r\033[K{line[: layout.width() - 1]}", end="", flush=True)


def _changes(states: Sequence[RunState], told: dict[str, str]) -> None:
    for number, state in enumerate(states, start=1):
        if state.state in ("pending", "unknown") or told.get(state.run.id) == state.state:
            continue
        told[state.run.id] = state.state
        what = f"{state.run.id[: layout.ID]} {layout.varies(state.run)}".rstrip()
        said = "" if state.state == "running" else progress.sentence(state)
        line = f"{number}/{len(states)}  {what}: {state.state}{', ' * bool(said)}{said}"
        print(line, flush=True)


def _outcome(states: Sequence[RunState]) -> None:
    short = [state for state in states if state.state != "completed"]
    if short:
        print(progress.table(short))
    if states:
        print(layout.counts(states))
