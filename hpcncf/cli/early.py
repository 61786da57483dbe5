"""The early verdict of `hpcncf run` in a batch job: one block in its log, after two minutes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hpcncf.errors import printable

if TYPE_CHECKING:
    from hpcncf.paths import AttemptPaths, ResultPaths
    from hpcncf.state.status import RunState
    from hpcncf_analysis.diagnosis.summary import Summary

AFTER_S: Final = 120.0
# Python that has taken no step after so many times as long is judged without.
PATIENCE: Final = 5
# Letters of a run's id.
ID: Final = 8
LOOK_EVERY_S: Final = 1.0

Begun = Callable[["AttemptPaths", threading.Event], None]


def parse_seconds(text: str) -> float:
    """Parse the argument of `--early`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise ArgumentTypeError(f"expected seconds above 0, came {text}")
    return seconds


def watcher(after_s: float | None, is_wanted: bool, env: Mapping[str, str]) -> Begun | None:
    """Return a function for `record` to call when the command begins; None if no verdict is wanted.

    `after_s` is what the user asked for. Without, only batch jobs get one: a log that nobody reads
    meanwhile, whose job may run for days.
    """
    from hpcncf.launcher.allocation import allocated_by

    in_batch = allocated_by(env) is not None and not sys.stderr.isatty()
    if not is_wanted or not (in_batch or after_s is not None):
        return None

    def begun(attempt: AttemptPaths, ended: threading.Event) -> None:
        def watch() -> None:
            seconds = AFTER_S if after_s is None else after_s
            if not ended.wait(seconds):
                try:
                    _watch(attempt, ended, env, seconds)
                except OSError:  # nobody reads standard error, or its disk is full
                    pass
                except Exception as error:  # the command goes on, whatever becomes of the verdict
                    sys.stderr.write(f"hpcncf: no verdict yet: {type(error).__name__}: {error}\n")

        threading.Thread(target=watch, name="hpcncf-early", daemon=True).start()

    return begun


def _watch(
    attempt: AttemptPaths, ended: threading.Event, env: Mapping[str, str], after_s: float
) -> None:
    """Print the verdict as soon as the program has taken enough steps, and run for so long.

    Python that takes none is waited for longer, another program is not.
    """
    from hpcncf.collect.unfinished import records_so_far
    from hpcncf.launcher.environment import slurm_job_id
    from hpcncf.records.plain import plain_record, utc_now, write_plain
    from hpcncf.records.schema import Claim, read_record
    from hpcncf_analysis.diagnosis.early import early_lines, has_enough_steps
    from hpcncf_analysis.diagnosis.summary import summarize

    began = time.monotonic()
    claim, job = read_record(attempt.claim, Claim), slurm_job_id(env)
    while True:
        ranks, nodes = records_so_far(attempt, claim)
        if ranks and ranks[0].elapsed_s >= after_s:
            enough = has_enough_steps(ranks[0])
            waited_s = time.monotonic() - began
            may_train = bool(ranks[0].program) and waited_s < (PATIENCE - 1) * after_s
            if enough or (enough is None and not may_train):
                break
        if ended.wait(LOOK_EVERY_S):
            return
    more = f"hpcncf diagnose {job}" if job else f"hpcncf diagnose {attempt.folder.parent.name}"
    lines = early_lines(summarize(ranks, nodes), ends_in_s(job, env), more)
    text = "".join(f"hpcncf: {line}\n" for line in lines)
    # On a line of its own, whatever the program has printed: in one call, so that it stays whole.
    os.write(2, f"\n{text}".encode(sys.stderr.encoding or "utf-8", "backslashreplace"))
    run_id = attempt.folder.parent.name
    write_plain(
        attempt.early,
        plain_record("early", run_id, attempt.number, written_at=utc_now(), lines=lines),
    )


def ends_in_s(job: str | None, env: Mapping[str, str]) -> float | None:
    """Return the seconds until the job's time limit; None if it has none that is known."""
    given = env.get("SLURM_JOB_END_TIME", "")
    if given.isdecimal():
        return max(0.0, float(given) - time.time())
    if job is None:
        return None
    from hpcncf.slurm.query import job_ends_at

    ends = job_ends_at(job)
    return None if ends is None else max(0.0, ends.timestamp() - time.time())


def early_verdicts(paths: ResultPaths, states: Sequence[RunState]) -> list[str]:
    """Return the verdicts that logs of running commands got, for `hpcncf status`."""
    text: list[str] = []
    for state in states:
        if state.state != "running" or not state.run.by_hand or state.attempt is None:
            continue
        file = paths.run(state.run.id).attempt(state.attempt).early
        with suppress(OSError, ValueError, LookupError, TypeError):
            lines = json.loads(file.read_text(encoding="utf-8"))["lines"]
            text += [f"{state.run.id[:ID]}: {printable(str(line))}" for line in lines]
    return text


def forecast(summary: Summary, job: str | None) -> list[str]:
    """Return the line of the projected end, for the page of a job that runs."""
    from hpcncf_analysis.diagnosis.early import forecast_end

    line = forecast_end(summary.rank.program, ends_in_s(job, {}) if job else None)
    return [f"{line[0].upper()}{line[1:]}."] if line else []
