"""The ranks of one run on this machine: each on cores of its own, watched to its end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

from hpcncf.paths import AttemptPaths
from hpcncf.plan import Run

Reason = Literal["exited", "timeout", "cancelled"]
Ranks = list[subprocess.Popen[bytes]]

POLL_S: Final = 0.2
# A rank whose peer died sees its connection break and leaves a record of that: worth a wait.
LEAVE_S: Final = 5.0
# From SIGTERM to SIGKILL: time to write a record.
GRACE_S: Final = 15.0

PR_SET_PDEATHSIG: Final = 1


def start(results: Path, run: Run, attempt: AttemptPaths, cpus: list[int], gpus: str) -> Ranks:
    """Start every rank of the run. `cpus` are the run's, shared out evenly in their order."""
    command = [sys.executable, "-P", "-u", "-m", "hpcncf.worker", str(results), "--run", run.id]
    known = _environment(run, attempt, cpus, gpus)
    share, ranks = run.resources.cpus_per_task, Ranks()
    for rank in range(run.resources.world_size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with bound_to(cpus[rank * share : (rank + 1) * share]), attempt.log(rank).open("wb") as log:
            ranks.append(
                subprocess.Popen(
                    command,
                    env=known | own,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=0,  # so that a killed rank's DataLoader workers go with it
                    preexec_fn=end_with_parent,
                )
            )
    return ranks


def _environment(run: Run, attempt: AttemptPaths, cpus: list[int], gpus: str) -> dict[str, str]:
    """What all ranks are told; variables of the queue's own submitit job are not theirs."""
    threads, world = str(run.resources.cpus_per_task), str(run.resources.world_size)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SUBMITIT_", "TORCHELASTIC_"))
    }
    return inherited | {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        # Else gloo asks a name server for the host's own name, and may wait for it.
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "CUDA_VISIBLE_DEVICES": gpus,
        "HPCNCF_ATTEMPT": str(attempt.number),
        "HPCNCF_LAUNCHED_BY": "local",
        "HPCNCF_NODE_CPUS": ",".join(str(cpu) for cpu in cpus),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def bound_to(cpus: list[int]) -> Iterator[None]:
    """This thread on `cpus` only: what it starts meanwhile inherits that before its first line."""
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def end_with_parent() -> None:
    """Linux sends this process SIGTERM when its parent dies: no rank outlives its queue."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def watch(
    ranks: Ranks,
    limit_s: float,
    told_to_stop: Callable[[], bool],
    leave_s: float = LEAVE_S,
    grace_s: float = GRACE_S,
) -> Reason:
    """Wait until every rank is gone; end them all at the limit, when told, or after one failed."""
    deadline, failed_at = time.monotonic() + limit_s, None
    while None in (codes := [rank.poll() for rank in ranks]):
        now = time.monotonic()
        if told_to_stop():
            stop(ranks, grace_s)
            return "cancelled"
        if now > deadline:
            stop(ranks, grace_s)
            return "timeout"
        if failed_at is None and any(codes):
            failed_at = now
        if failed_at is not None and now > failed_at + leave_s:
            stop(ranks, grace_s)
            return "exited"
        time.sleep(POLL_S)
    return "exited"


def stop(ranks: Ranks, grace_s: float = GRACE_S) -> None:
    """SIGTERM, and after a grace SIGKILL to what is left, workers included."""
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    deadline = time.monotonic() + grace_s
    while None in [rank.poll() for rank in ranks] and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
