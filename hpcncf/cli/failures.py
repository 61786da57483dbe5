"""Report failed runs: equal failures once, each with the line of the log that explains it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hpcncf.cli.output import ID, filled, format_path, width
from hpcncf.errors import printable
from hpcncf.launch.retry import ran_out_of
from hpcncf.paths import ResultPaths
from hpcncf.state.decide import attempt_logs, read_last_lines, slurm_logs
from hpcncf.state.status import RunState
from hpcncf.text import pluralize

FAILED: Final = ("failed", "timeout", "out_of_memory", "node_failed", "lost", "stopped")
LINES: Final = 6
# A program's end is no error of ours: its output explains it.
OF_A_COMMAND: Final = ("exit code", "signal")
NAMED: Final = 6
FRAME: Final = re.compile(r'\s*File "')
INDENT: Final = "    "


@dataclass(frozen=True)
class Failure:
    """Runs that failed for the same reason."""

    runs: list[RunState]
    error: Mapping[str, str]
    """As the record of the first rank that failed has it; empty where there is none."""

    @property
    def first(self) -> RunState:
        return self.runs[0]

    @property
    def traceback(self) -> list[str]:
        """Last lines of the traceback; empty if the message suffices."""
        return self.error.get("traceback", "").rstrip().splitlines()[-LINES:]

    @property
    def unsaid(self) -> list[str] | None:
        """Lines of our own error message that the reason leaves out; None without one."""
        if not self.error or self.error.get("type") in OF_A_COMMAND:
            return None
        lines = self.error.get("message", "").splitlines()
        return [line for line in lines if line.strip() not in self.first.reason]


def grouped(states: Sequence[RunState]) -> list[Failure]:
    """Group failed runs by reason, the most frequent first."""
    groups: dict[tuple[str, str], list[RunState]] = {}
    for state in states:
        if state.state in FAILED and not state.run.retired:
            groups.setdefault((state.state, _normalize_reason(state.reason)), []).append(state)
    found = [Failure(runs, _error(runs[0])) for runs in groups.values()]
    return sorted(found, key=lambda failure: -len(failure.runs))


def _normalize_reason(reason: str) -> str:
    """Replace numbers of jobs, ranks and processes, and node names, to compare reasons."""
    plain = re.sub(r"(Slurm job |rank |task |process |port |pid )[\d_]+", r"\1N", reason)
    return re.sub(r"(task N on )[^\s:]+", r"\1N", plain)


def _error(state: RunState) -> Mapping[str, str]:
    errors = (each.error for each in state.ranks if each.outcome == "failed" and each.error)
    return next(errors, {})


def failures_page(paths: ResultPaths, states: Sequence[RunState], full: bool = False) -> str:
    """Page of all failures, "" if nothing failed; with `full` including tracebacks."""
    return "\n".join(line for failure in grouped(states) for line in _lines(paths, failure, full))


def _lines(paths: ResultPaths, failure: Failure, full: bool) -> Iterator[str]:
    first, number = failure.first, len(failure.runs)
    word = first.state.replace("_", " ")
    yield filled(f"{pluralize(number, 'run')} {word}: {first.reason}")
    log = log_of(paths, first)
    yield from _failure_lines(failure, log, full)
    ids = [state.run.id[:ID] for state in failure.runs]
    more = f" and {number - NAMED} more" if number > NAMED else ""
    yield filled(f"  runs {', '.join(ids[:NAMED])}{more}")
    if log:
        yield f"  log of {ids[0]}: {format_path(log)}"
    if key := ran_out_of(first) if first.job else None:
        had = getattr(first.run.resources, key)
        unit = {"mem_gb": "GB", "timeout_min": "min"}[key]
        way = f"hpcncf retry {format_path(paths.folder)} --escalate"
        yield filled(f"  had {had:g} {unit}; again with twice that: {way}")


def _failure_lines(failure: Failure, log: Path | None, full: bool) -> Iterator[str]:
    """Yield the details of a failure that its reason leaves out.

    These are the rest of our own message, the place in a traceback, or the end of the log.
    """
    if failure.unsaid is not None and not failure.traceback:
        yield from (filled(line, INDENT) for line in failure.unsaid)
        return
    lines = failure.traceback or _tail(log)
    if not full and lines and lines[-1].strip() and lines[-1].strip() in failure.first.reason:
        lines = [line for line in lines if FRAME.match(line)][-1:]
    for line in lines:
        yield INDENT + printable(line)[: width() - len(INDENT)]


def log_of(paths: ResultPaths, state: RunState) -> Path | None:
    """Return the log that most likely holds the cause of a failure; None if there is none.

    It is the failed rank's, else that of rank 0.
    """
    rank = next((record.rank for record in state.ranks if record.outcome == "failed"), 0)
    files = list[Path]()
    if state.attempt is not None:
        by = state.job.id if state.job else None
        job_id = state.ranks[0].slurm_job_id if state.ranks else by
        attempt = paths.run(state.run.id).attempt(state.attempt)
        files = attempt_logs(paths, attempt, job_id, rank)
    elif state.job is not None:
        files = slurm_logs(paths, state.job.id, rank)
    written = [file for file in files if file.stat().st_size]
    return min(written, key=lambda file: file.suffix != ".err", default=None)


def _tail(log: Path | None) -> list[str]:
    if log is None:
        return []
    try:
        return read_last_lines(log, LINES)
    except OSError:
        return []


def plain_failures(paths: ResultPaths, states: Sequence[RunState]) -> list[dict[str, Any]]:
    """Failures as plain data for `--json`."""
    return [
        {
            "state": failure.first.state,
            "reason": failure.first.reason,
            "traceback": failure.traceback,
            "message": failure.error.get("message"),
            "runs": [state.run.id for state in failure.runs],
            "log": str(log) if (log := log_of(paths, failure.first)) else None,
        }
        for failure in grouped(states)
    ]
