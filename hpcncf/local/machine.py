"""The local queue of this machine: its cores, its lock, its turn."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.validate import node_shared_memory_bytes
from hpcncf.monitor import cgroup
from hpcncf.monitor.gpu import visible_gpus
from hpcncf.paths import ResultPaths
from hpcncf.records.active_queue import ActiveQueue, active_queue_file
from hpcncf.records.claims import process_start
from hpcncf.records.schema import write_record
from hpcncf.records.submissions import Submission, SubmittedJob, user
from hpcncf.slurm.batch_script import make_private_folder
from hpcncf.worker.processes import hold_interrupt

# The queue ends each run at its own limit; submitit's must never come first, however long the
# queue waits for its turn.
SLACK_MIN: Final = 60 * 24 * 30
POLL_S: Final = 0.5
SHM: Final = "/dev/shm"


def refusal(run: Run) -> str | None:
    """Return why this machine cannot execute the run, and what to change; None if it can."""
    asked = run.resources
    if asked.nodes > 1:
        return f"needs {asked.nodes} nodes, and this machine is one. Use --cluster slurm"
    if asked.node_gpus > len(visible_gpus()):
        return f"needs {asked.node_gpus} GPUs, and this machine lets you use {len(visible_gpus())}"
    if problem := shared_memory_problem(run):
        return problem
    usable = cgroup.usable()
    if asked.side_by_side > 1 and asked.node_cores > usable >= asked.cores:
        return (
            f"needs {asked.node_cores} cores for {asked.side_by_side} runs side by side, and "
            f"this machine lets you use {usable:g}. {int(usable) // asked.cores} runs fit"
        )
    if asked.cores <= usable:
        return None
    fewer = max(int(usable) // asked.world_size, 1)
    instead = f"-s resources.cpus_per_task={fewer}, or " if fewer < asked.cpus_per_task else ""
    return (
        f"needs {asked.cores} cores, and this machine lets you use {usable:g}. Use {instead}"
        "--cluster slurm"
    )


def shared_memory_problem(run: Run) -> str | None:
    """Return why this machine's /dev/shm is too small for the run; None if it is not."""
    held = node_shared_memory_bytes(run.resources, run.training) if run.training else 0
    room = shutil.disk_usage(SHM).total if Path(SHM).is_dir() else held
    if held <= room:
        return None
    return (
        f"needs {held / 2**20:,.0f} MiB in {SHM} for the batches of DataLoader workers, and this "
        f"machine has {room / 2**20:,.0f} MiB. Use fewer num_workers, or a smaller "
        "prefetch_factor or batch"
    )


def find_warning(run: Run) -> str | None:
    """Return a warning that a run may run out of memory here, or None.

    Nothing on this machine enforces `mem_gb`.
    """
    asked, here = run.resources, memory_gb()
    if asked.node_mem_gb <= here:
        return shared_memory_problem(run)
    several = f" for {asked.side_by_side} runs side by side" if asked.side_by_side > 1 else ""
    return (
        f"requests {asked.node_mem_gb:g} GB{several}, and this machine lets you use {here:.3g}. It "
        "is started, and killed if it takes more. Use -s resources.mem_gb=N if it needs less, or "
        "--cluster slurm"
    )


def memory_gb() -> float:
    """Return the memory in GB that this process may use: the machine's, or a cgroup's limit."""
    whole, limit = psutil.virtual_memory().total / 2**30, cgroup.memory_limit()
    return min(whole, limit.value / 1024) if limit else whole


def start(paths: ResultPaths, submission_file: Path) -> None:
    """Start the local queue in its own session, so that it outlives the terminal.

    Raises HpcncfError with the starter's last line if that fails.
    """
    _check_turn_folder()
    make_private_folder(paths.submitit(user()))
    name = submission_file.name
    command = [sys.executable, "-P", "-m", "hpcncf.local.queue", str(paths.folder), name]
    # The queue itself computes nothing; a rank gets its own number of threads.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    log = paths.submissions / f".{submission_file.stem}.log"
    with log.open("w+") as said:
        code = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            preexec_fn=hold_interrupt,
            check=False,
        ).returncode
        said.seek(0)
        last = said.read().strip().splitlines()[-1:] or [f"exit code {code}"]
    log.unlink()
    if code != 0:
        raise HpcncfError(f"{paths.folder}: the local queue did not start: {last[0]}")


def _check_turn_folder() -> None:
    """Check that the lock of local queues can be written; raises HpcncfError if not.

    The queue would otherwise fail in the background.
    """
    lock = active_queue_file().with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.open("a").close()
    except OSError as error:
        raise HpcncfError(
            f"{lock}: cannot be written: {error.strerror}. Local queues take turns with it: set "
            "XDG_CACHE_HOME to a folder of yours"
        ) from None


def add_queue_process(submission: Submission, pid: int) -> Submission:
    """Return the submission with the id of the process that executes it."""
    job = SubmittedJob(id=str(pid), runs=submission.runs, process_started=process_start(pid))
    return submission.model_copy(update={"jobs": [job]})


@contextmanager
def taking_turns(
    paths: ResultPaths, submission: str, should_stop: Callable[[], bool]
) -> Iterator[bool]:
    """Wait until no other local queue of this user runs here, since two would share the cores.

    Yields False if `should_stop` became true first.
    """
    lock = active_queue_file().with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        while not _locked(file.fileno()):
            if should_stop():
                yield False
                return
            time.sleep(POLL_S)
        mine = ActiveQueue(
            results=str(paths.folder),
            submission=submission,
            pid=os.getpid(),
            process_started=process_start(os.getpid()),
        )
        write_record(active_queue_file(), mine)
        try:
            yield True
        finally:
            active_queue_file().unlink(missing_ok=True)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
