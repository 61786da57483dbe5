"""The local queue: one submitit job that works through its runs, one after another.

`python -m hpcncf.local.queue RESULTS SUBMISSION` starts it and returns; `work` is the job.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from hpcncf import claims, final_report, records, submissions
from hpcncf.local import machine, processes
from hpcncf.monitor import cores
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.plan import Run
from hpcncf.rank.word import Word
from hpcncf.records import End
from hpcncf.results import read_plan
from hpcncf.state import evidence
from hpcncf.state.attempts import last_attempt
from hpcncf.submissions import Submission

# Of PYTHONSAFEPATH, where it is ours and not the user's: any value has Python's -P.
SAFE: Final = "hpcncf"


def main(argv: list[str]) -> None:
    """Hand `work` to submitit and note its process in the submission."""
    import submitit

    paths, name = ResultPaths(Path(argv[0])), argv[1]
    submission = records.read(paths.submissions / name, Submission)
    runs = _runs(paths, submission)
    folder = paths.submitit(submissions.user())
    executor = submitit.LocalExecutor(folder, python=f"{shlex.quote(sys.executable)} -P")
    # submitit's controller is started without -P.
    os.environ["PYTHONSAFEPATH"] = os.environ.get("PYTHONSAFEPATH") or SAFE
    visible = machine.gpus()
    executor.update_parameters(
        timeout_min=sum(run.resources.timeout_min for run in runs) + machine.SLACK_MIN,
        gpus_per_node=len(visible),
        visible_gpus=visible,
    )
    job = executor.submit(work, str(paths.folder), name)
    records.write(paths.submissions / name, machine.started(submission, int(job.job_id)))


def work(results: str, name: str) -> None:
    """Run what the submission names, each run on its own cores, until all are done or told off."""
    processes.end_with_parent()
    if os.environ.get("PYTHONSAFEPATH") == SAFE:  # a user's own program may need its neighbours
        del os.environ["PYTHONSAFEPATH"]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, lambda *_: stop.set())
    paths = ResultPaths(Path(results))
    submission = records.read(paths.submissions / name, Submission)
    word = Word(paths, every_s=0.0)

    def cancelled(run_id: str) -> bool:
        return word.against(run_id, submission.submitted_at)

    def ended() -> bool:
        return stop.is_set() or all(map(cancelled, submission.runs))

    with machine.taking_turns(paths, name, ended) as ours:
        for run in _runs(paths, submission) if ours else []:
            told_to_stop = partial(_told_to_stop, stop, cancelled, run.id)
            if not told_to_stop() and wanted(paths, run, submission):
                # One run that cannot be begun, or leave its end, must not end those after it.
                try:
                    execute(paths, run, submission.over.get(run.id, 0), told_to_stop)
                except (claims.Taken, OSError) as problem:
                    sys.stderr.write(f"run {run.id}: {problem}\n")
        if ours and submission.report and not ended():
            final_report.report(results)


def _runs(paths: ResultPaths, submission: Submission) -> list[Run]:
    planned = {run.id: run for run in read_plan(paths).runs}
    return [planned[run_id] for run_id in submission.runs]


def _told_to_stop(stop: threading.Event, cancelled: Callable[[str], bool], run_id: str) -> bool:
    return stop.is_set() or cancelled(run_id)


def wanted(paths: ResultPaths, run: Run, submission: Submission) -> bool:
    """Whether the run still has to be run: another queue, or a person, may have been at it."""
    before, held = submission.over.get(run.id, 0), claims.holder(paths.run(run.id))
    if held is not None and held.attempt > before:
        return False
    attempt = last_attempt(paths.run(run.id))
    if attempt is None or not evidence.complete(run, attempt):
        return True
    return submission.again and attempt.number <= before


def execute(
    paths: ResultPaths, run: Run, over: int, told_to_stop: Callable[[], bool]
) -> AttemptPaths:
    """One attempt at the run, start to end; how it ended stands in its `end.json`."""
    attempt = claims.take(paths.run(run.id), "local", over=over)
    cpus = cores.usable_cpus()[: run.resources.cores]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = ",".join(visible[: run.resources.gpus_per_node])
    ranks = processes.start(paths.folder, run, attempt, cpus, gpus)
    reason = processes.watch(ranks, run.resources.timeout_min * 60, told_to_stop)
    end = End(
        run_id=run.id,
        attempt=attempt.number,
        reason=reason,
        exit_codes=[rank.returncode for rank in ranks],
        ended_at=records.now(),
    )
    records.write(attempt.end, end)
    return attempt


if __name__ == "__main__":
    # By its importable name: submitit pickles functions of `__main__` by value.
    from hpcncf.local import queue

    queue.main(sys.argv[1:])
