"""The local queue of this machine: its cores, its lock, its turn."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import psutil

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.validate import node_shared_memory_bytes
from hpcncf.monitor import cgroup
from hpcncf.paths import ResultPaths
from hpcncf.records.claims import is_same_process
from hpcncf.records.schema import (
    SCHEMA_VERSION,
    Number,
    ProcessId,
    RecordError,
    RecordPart,
    read_record,
    write_record,
)
from hpcncf.records.submissions import Submission, SubmittedJob, user
from hpcncf.slurm.batch_script import make_private_folder

# The queue ends each run at its own limit; submitit's must never come first, however long the
# queue waits for its turn.
SLACK_MIN: Final = 60 * 24 * 30
POLL_S: Final = 0.5
SHM: Final = "/dev/shm"
# At the first name of another kind CUDA stops reading.
GPU_NAME: Final = re.compile(r"\d+|(GPU|MIG)-\S+")


class Turn(RecordPart):
    """Which local queue works on this machine now, for those that wait to read."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["turn"] = "turn"
    results: str
    submission: str
    pid: ProcessId
    process_started: Number


def refusal(run: Run) -> str | None:
    """Why this machine cannot run it, and what can be done; None where it can."""
    asked = run.resources
    if asked.nodes > 1:
        return f"needs {asked.nodes} nodes, this machine is one: submit it with --cluster slurm"
    if asked.node_gpus > len(gpus()):
        return f"needs {asked.node_gpus} GPUs, this machine lets you use {len(gpus())}"
    if problem := shared_memory_problem(run):
        return problem
    usable = cgroup.usable()
    if asked.side_by_side > 1 and asked.node_cores > usable >= asked.cores:
        return (
            f"needs {asked.node_cores} cores for {asked.side_by_side} runs side by side, this "
            f"machine lets you use {usable:g}: {int(usable) // asked.cores} runs fit"
        )
    if asked.cores <= usable:
        return None
    fewer = max(int(usable) // asked.world_size, 1)
    instead = f"-s resources.cpus_per_task={fewer}, or " if fewer < asked.cpus_per_task else ""
    return (
        f"needs {asked.cores} cores, this machine lets you use {usable:g}: {instead}--cluster slurm"
    )


def shared_memory_problem(run: Run) -> str | None:
    """Why /dev/shm of this machine is too small for the run; None if it is not."""
    held = node_shared_memory_bytes(run.resources, run.training) if run.training else 0
    room = shutil.disk_usage(SHM).total if Path(SHM).is_dir() else held
    if held <= room:
        return None
    return (
        f"needs {held / 2**20:,.0f} MiB in {SHM} for the batches of DataLoader workers, and this "
        f"machine has {room / 2**20:,.0f} MiB. Use fewer num_workers, a smaller prefetch_factor or "
        "batch, or workers: thread"
    )


def doubt(run: Run) -> str | None:
    """What may end a run here that is not refused: nothing on this machine holds it to `mem_gb`."""
    asked, here = run.resources, memory_gb()
    if asked.node_mem_gb <= here:
        return shared_memory_problem(run)
    several = f" for {asked.side_by_side} runs side by side" if asked.side_by_side > 1 else ""
    return (
        f"asks for {asked.node_mem_gb:g} GB{several}, this machine lets you use {here:.3g}: it is "
        "started, and killed where it takes more than there is: -s resources.mem_gb=N where it "
        "needs less, or --cluster slurm"
    )


def memory_gb() -> float:
    """What this process may use: the machine's memory, or a cgroup's limit."""
    whole, limit = psutil.virtual_memory().total / 2**30, cgroup.memory_limit()
    return min(whole, limit.value / 1024) if limit else whole


def gpus(devices: Path = Path("/dev")) -> list[str]:
    """The NVIDIA GPUs that this process may use, as it would name them in CUDA_VISIBLE_DEVICES: by
    number, or by the UUID that somebody named them by."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        names = (name.strip() for name in named.split(","))
        return list(itertools.takewhile(GPU_NAME.fullmatch, names))
    # CUDA counts those that are here: a container may have one alone, as nvidia5.
    here = [path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return [str(number) for number in range(len(here))]


def start(paths: ResultPaths, submission_file: Path) -> None:
    """Start the queue in a session of its own, so that it outlives the terminal.

    Raises HpcncfError with what the starter said where it did not come to life.
    """
    _check_turn_folder()
    make_private_folder(paths.submitit(user()))
    name = submission_file.name
    command = [sys.executable, "-P", "-m", "hpcncf.local.queue", str(paths.folder), name]
    # The queue itself computes nothing; a rank is told its own number of threads.
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
            check=False,
        ).returncode
        said.seek(0)
        last = said.read().strip().splitlines()[-1:] or [f"exit code {code}"]
    log.unlink()
    if code != 0:
        raise HpcncfError(f"{paths.folder}: the local queue did not start: {last[0]}")


def _check_turn_folder() -> None:
    """The queue would fail there as well, but nobody would hear of it."""
    lock = turn_file().with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.open("a").close()
    except OSError as error:
        raise HpcncfError(
            f"{lock}: cannot be written: {error.strerror}; local queues take turns with it: "
            "set XDG_CACHE_HOME to a folder of yours"
        ) from None


def started(submission: Submission, pid: int) -> Submission:
    """The submission with the process that works through it."""
    since = psutil.Process(pid).create_time()
    job = SubmittedJob(id=str(pid), runs=submission.runs, process_started=since)
    return submission.model_copy(update={"jobs": [job]})


def turn_file() -> Path:
    """One per user and machine; the home folder may be shared by many machines."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hpcncf" / f"queue-{os.uname().nodename}.json"


def turn() -> Turn | None:
    """Whose turn it is on this machine; None when no queue works."""
    try:
        found = read_record(turn_file(), Turn)
    except RecordError:
        return None
    return found if is_same_process(found.pid, found.process_started) else None


@contextmanager
def taking_turns(
    paths: ResultPaths, submission: str, told_to_stop: Callable[[], bool]
) -> Iterator[bool]:
    """Wait until no other local queue of this user works here: two would share the cores.

    False when told to stop before its turn came.
    """
    lock = turn_file().with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        while not _locked(held.fileno()):
            if told_to_stop():
                yield False
                return
            time.sleep(POLL_S)
        mine = Turn(
            results=str(paths.folder),
            submission=submission,
            pid=os.getpid(),
            process_started=psutil.Process().create_time(),
        )
        write_record(turn_file(), mine)
        try:
            yield True
        finally:
            turn_file().unlink(missing_ok=True)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
