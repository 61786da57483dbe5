"""The queue process of one local submission.

`python -m hpcncf.local.queue RESULTS SUBMISSION` starts it and returns; `work` is the job.
submitit's local executor alone would start a whole array at once, bind nothing, and stop jobs after
two minutes.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from hpcncf.job import packs
from hpcncf.job.plan import Run
from hpcncf.launcher.pinning import in_order
from hpcncf.local import machine
from hpcncf.monitor import topology
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.monitor.gpu import visible_gpus
from hpcncf.monitor.topology import spread
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records import claims
from hpcncf.records.plan_file import read_plan
from hpcncf.records.schema import read_record, write_record
from hpcncf.records.submissions import Submission, user
from hpcncf.state.cancel_check import CancelCheck
from hpcncf.state.decide import is_complete, last_attempt
from hpcncf.worker import processes
from hpcncf.worker.pack import LaunchPolicy, Machine, PackRunner
from hpcncf.worker.task import write_report

# Of PYTHONSAFEPATH, where it is ours and not the user's: any value has Python's -P.
SAFE: Final = "hpcncf"
GPUS: Final = "HPCNCF_GPUS"
"""The variable that takes the names of the GPUs past submitit, which knows numbers only."""


def main(argv: list[str]) -> None:
    """Start the queue's process through submitit, and record it in the submission file."""
    import submitit

    paths, name = ResultPaths(Path(argv[0])), argv[1]
    submission = read_record(paths.submissions / name, Submission)
    runs = _runs(paths, submission)
    folder = paths.submitit(user())
    executor = submitit.LocalExecutor(folder, python=f"{shlex.quote(sys.executable)} -P")
    # submitit's controller is started without -P.
    os.environ["PYTHONSAFEPATH"] = os.environ.get("PYTHONSAFEPATH") or SAFE
    os.environ[GPUS] = ",".join(visible_gpus())
    limit_min = sum(run.resources.timeout_min for run in runs) + machine.SLACK_MIN
    executor.update_parameters(timeout_min=limit_min)
    job = executor.submit(work, str(paths.folder), name)
    write_record(paths.submissions / name, machine.add_queue_process(submission, int(job.job_id)))


def work(results: str, name: str) -> None:
    """Execute the submission's runs on their own cores, until all are done or cancelled."""
    processes.end_with_parent()
    if os.environ.get("PYTHONSAFEPATH") == SAFE:  # a user's own program may need its neighbours
        del os.environ["PYTHONSAFEPATH"]
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.pop(GPUS)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, lambda *_: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # held by machine.start
    paths = ResultPaths(Path(results))
    submission = read_record(paths.submissions / name, Submission)
    check = CancelCheck(paths, every_s=0.0)

    def should_stop(run_id: str) -> bool:
        return stop.is_set() or check.is_cancelled(run_id, submission.submitted_at)

    def all_stopped() -> bool:
        return all(map(should_stop, submission.runs))

    with machine.taking_turns(paths, name, all_stopped) as ours:
        for together in packs.pack_runs(_runs(paths, submission)) if ours else []:
            unfinished = [run for run in together if not should_stop(run.id)]
            unfinished = [run for run in unfinished if wanted(paths, run, submission)]
            if unfinished:
                execute(paths, unfinished, submission.over, should_stop)
        if ours and submission.report and not all_stopped():
            write_report(results)


def _runs(paths: ResultPaths, submission: Submission) -> list[Run]:
    planned = {run.id: run for run in read_plan(paths).runs}
    return [planned[run_id] for run_id in submission.runs]


def wanted(paths: ResultPaths, run: Run, submission: Submission) -> bool:
    """Return whether the run must still be started.

    Another queue, or a person, may have started it already.
    """
    before, claim = submission.over.get(run.id, 0), claims.current_claim(paths.run(run.id))
    if claim is not None and claim.attempt > before:
        return False
    attempt = last_attempt(paths.run(run.id))
    if attempt is None or not is_complete(run, attempt):
        return True
    return submission.again and attempt.number <= before


def execute(
    paths: ResultPaths,
    runs: Sequence[Run],
    over: Mapping[str, int],
    should_stop: Callable[[str], bool],
) -> None:
    """Make one attempt at each run of a pack, and write each attempt's `end.json`.

    A run that cannot be started, or whose end cannot be written, does not stop the others.
    """

    def take(run: Run) -> AttemptPaths:
        return claims.claim_attempt(paths.run(run.id), "local", over=over.get(run.id, 0))

    cpus, wanted = usable_cpus(), runs[0].resources.node_cores
    if runs[0].resources.packed:
        cpus = spread(cpus, wanted)
    elif (training := runs[0].training) and training.pin != "none":
        asked = runs[0].resources
        found = topology.cores(cpus)
        cpus = in_order(asked.tasks_per_node, asked.cpus_per_task, found)
    on = Machine(cpus[:wanted], visible_gpus(), {})
    PackRunner(paths, on, LaunchPolicy(take, should_stop)).work(runs)


if __name__ == "__main__":
    # By its importable name: submitit pickles functions of `__main__` by value.
    from hpcncf.local import queue

    queue.main(sys.argv[1:])
