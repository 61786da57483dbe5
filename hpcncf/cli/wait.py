"""Wait for submitted runs: one moving line in a terminal, a line per change in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hpcncf.cli.output import ID, counts, format_path, usual_values, varies, width
from hpcncf.cli.progress import sentence, table_progress
from hpcncf.job.plan import Plan
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import read_plan
from hpcncf.slurm.query import RateLimitedStates
from hpcncf.slurm.states import NEVER
from hpcncf.state import status
from hpcncf.state.status import UNDER_WAY, RunState

POLL_S: Final = 2.0
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
    """Return when none of the runs is under way: 0 when all are complete, else 3.

    The wait ends, too, if the state of all of them has been unknown for `patience_s`.
    """
    watch = Watch(paths, run_ids, quiet, patience_s)
    try:
        states = watch.to_the_end()
    except KeyboardInterrupt:
        there = format_path(paths.folder)
        print(f"\nthe runs continue; to cancel them: hpcncf cancel --all {there}", file=sys.stderr)
        raise
    if not quiet:
        _outcome(states)
    return 0 if all(state.state == "completed" for state in states) else 3


@dataclass
class Watch:
    """Only what is under way is read again: a local run is being measured meanwhile."""

    paths: ResultPaths
    run_ids: Sequence[str]
    quiet: bool
    patience_s: float
    ask: RateLimitedStates = field(default_factory=RateLimitedStates)
    found: dict[str, RunState] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    """Run -> the state that was printed last."""
    known_at: float = field(default_factory=time.monotonic)
    plan: Plan | None = None
    plan_of: tuple[int, int] = (0, 0)
    """The plan's file when it was read: an unchanged one is not read again."""

    def to_the_end(self) -> list[RunState]:
        terminal = sys.stdout.isatty() and not self.quiet
        open_ids = set(self.run_ids)
        while open_ids and not self._gave_up(open_ids):
            began = time.monotonic()
            now = self._look(open_ids)
            took_s = time.monotonic() - began
            open_ids = {state.run.id for state in now if state.state in UNDER_WAY}
            if terminal:
                _moving_line(self._states())
            elif not self.quiet:
                _changes(self._states(), self.printed)
            if open_ids:
                time.sleep(min(max(POLL_S, SHARE * took_s), self.patience_s))
        if terminal:
            print("\r\033[K", end="")
        return self._states()

    def _look(self, run_ids: set[str]) -> list[RunState]:
        plan = self._plan()
        asked = [run for run in plan.runs if run.id in run_ids]
        now = status.states(self.paths, plan.model_copy(update={"runs": asked}), self.ask)
        self.found |= {state.run.id: state for state in now}
        if any(state.state != "unknown" for state in now):
            self.known_at = time.monotonic()
        return now

    def _plan(self) -> Plan:
        there = self.paths.plan.stat() if self.paths.plan.exists() else None
        now = (there.st_mtime_ns, there.st_ino) if there else (0, 0)
        if self.plan is None or now != self.plan_of:
            self.plan, self.plan_of = read_plan(self.paths), now
        return self.plan

    def _gave_up(self, open_ids: set[str]) -> bool:
        silent_s = time.monotonic() - self.known_at
        if silent_s < self.patience_s or not self.found:
            return False
        first = self.found[min(open_ids)]
        print(
            f"hpcncf: no longer waiting: the state of {len(open_ids)} "
            f"run{'s' * (len(open_ids) != 1)} has been unknown for {silent_s:.0f} s "
            f"({first.reason})",
            file=sys.stderr,
        )
        return True

    def _states(self) -> list[RunState]:
        return [self.found[run_id] for run_id in self.run_ids if run_id in self.found]


def _moving_line(states: Sequence[RunState]) -> None:
    done = sum(state.state not in UNDER_WAY for state in states)
    bar = "#" * (20 * done // len(states)) if states else ""
    line = f"[{bar:20}] {done}/{len(states)}"
    shown = [state for state in states if state.state == "running"] or [
        state for state in states if state.state in UNDER_WAY
    ]
    for state in shown[:1]:
        usual = usual_values([each.run for each in states])
        line += f"  {varies(state.run, usual)}: {sentence(state)}"
    print(f"\r\033[K{line[: width() - 1]}", end="", flush=True)


def _changes(states: Sequence[RunState], printed: dict[str, str]) -> None:
    done = sum(state.state not in UNDER_WAY for state in states)
    usual = usual_values([state.run for state in states])
    for state in states:
        # A waiting run is printed if it waits for something that will not come by itself.
        quiet = state.state in ("pending", "unknown") and NEVER not in state.reason
        if quiet or printed.get(state.run.id) == state.state:
            continue
        printed[state.run.id] = state.state
        what = f"{state.run.id[:ID]} {varies(state.run, usual)}".rstrip()
        details = "" if state.state == "running" else sentence(state)
        line = f"[{done}/{len(states)}] {what}: {state.state}{', ' * bool(details)}{details}"
        print(line, flush=True)


def _outcome(states: Sequence[RunState]) -> None:
    short = [state for state in states if state.state != "completed"]
    if short:
        print(table_progress(short))
    if states:
        print(counts(states))
