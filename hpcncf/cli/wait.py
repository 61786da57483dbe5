"""Wait for submitted runs: one moving line in a terminal, a line per change in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Final

from hpcncf.cli.output import ID, counts, format_path, usual_values, varies, warn, width
from hpcncf.cli.progress import sentence, table_progress
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan
from hpcncf.slurm.pending_reasons import NEVER
from hpcncf.slurm.query import RateLimitedStates
from hpcncf.state import status
from hpcncf.state.status import UNDER_WAY, RunState
from hpcncf.text import pluralize

# A short run is not waited for much longer than it takes: pauses grow with the time so far.
POLL_S: Final = (0.2, 2.0)
GROWTH: Final = 0.1
# Of a login node's core a look takes a tenth at most.
SHARE: Final = 9.0
# slurmctld may restart, and NFS be slow; but an unknown state is not waited for without end.
PATIENCE_S: Final = 600.0


def wait(
    paths: ResultPaths,
    run_ids: Sequence[str],
    quiet: bool = False,
    patience_s: float = PATIENCE_S,
) -> int:
    """Wait until no run is under way; returns 0 if all are complete, else 3.

    The wait ends, too, if the state of all of them has been unknown for `patience_s`.
    """
    try:
        states = _watch(paths, run_ids, quiet, patience_s)
    except KeyboardInterrupt:
        there = format_path(paths.folder)
        print(f"\nthe runs continue; to cancel them: hpcncf cancel --all {there}", file=sys.stderr)
        raise
    incomplete = [state for state in states if state.state != "completed"]
    if not quiet and incomplete:
        print(table_progress(incomplete))
    if not quiet and states:
        print(counts(states))
    return 3 if incomplete else 0


def _watch(
    paths: ResultPaths, run_ids: Sequence[str], quiet: bool, patience_s: float
) -> list[RunState]:
    """Poll the runs until none is under way, and return their last states.

    Only runs that are under way are read again: a local run must not be disturbed while it is
    measured.
    """
    plan, ask = read_plan(paths), RateLimitedStates()
    terminal = sys.stdout.isatty() and not quiet
    found: dict[str, RunState] = {}
    printed: dict[str, str] = {}
    open_ids, known_at = set(run_ids), time.monotonic()
    start = known_at
    while open_ids:
        began = time.monotonic()
        asked = [run for run in plan.runs if run.id in open_ids]
        now = status.states(paths, plan.model_copy(update={"runs": asked}), ask)
        took_s = time.monotonic() - began
        found |= {state.run.id: state for state in now}
        open_ids = {state.run.id for state in now if state.state in UNDER_WAY}
        states = [found[run_id] for run_id in run_ids if run_id in found]
        if terminal:
            _print_bar(states)
        elif not quiet:
            _print_changes(states, printed)
        if any(state.state != "unknown" for state in now):
            known_at = time.monotonic()
        silent_s = time.monotonic() - known_at
        if open_ids and silent_s >= patience_s:
            warn(
                f"no longer waiting: the state of {pluralize(len(open_ids), 'run')} has been "
                f"unknown for {silent_s:.0f} s ({found[min(open_ids)].reason})"
            )
            break
        if open_ids:
            least_s, most_s = POLL_S
            pause_s = min(max(GROWTH * (time.monotonic() - start), least_s), most_s)
            time.sleep(min(max(pause_s, SHARE * took_s), patience_s))
    if terminal:
        print("\r\033[K", end="")
    return [found[run_id] for run_id in run_ids if run_id in found]


def _print_bar(states: Sequence[RunState]) -> None:
    under_way = [state for state in states if state.state in UNDER_WAY]
    done = len(states) - len(under_way)
    bar = "#" * (20 * done // len(states)) if states else ""
    line = f"[{bar:20}] {done}/{len(states)}"
    shown = [state for state in under_way if state.state == "running"] or under_way
    for state in shown[:1]:
        usual = usual_values([each.run for each in states])
        line += f"  {varies(state.run, usual)}: {sentence(state)}"
    print(f"\r\033[K{line[: width() - 1]}", end="", flush=True)


def _print_changes(states: Sequence[RunState], printed: dict[str, str]) -> None:
    """Print a line for each run whose state has changed since the last call.

    `printed` maps run ids to the states printed last, and is updated.
    """
    done = sum(state.state not in UNDER_WAY for state in states)
    usual = usual_values([state.run for state in states])
    for state in states:
        # A waiting run is printed if it waits for something that will not come by itself.
        quiet = state.state in ("pending", "unknown") and NEVER not in state.reason
        if quiet or printed.get(state.run.id) == state.state:
            continue
        printed[state.run.id] = state.state
        label = f"{state.run.id[:ID]} {varies(state.run, usual)}".rstrip()
        details = "" if state.state == "running" else sentence(state)
        line = f"[{done}/{len(states)}] {label}: {state.state}{', ' * bool(details)}{details}"
        print(line, flush=True)
