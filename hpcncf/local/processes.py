"""Start, bind, watch and end the ranks of a local run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from hpcncf.job.plan import Run
from hpcncf.paths import AttemptPaths

Reason = Literal["exited", "timeout", "cancelled"]
Ranks = list[subprocess.Popen[bytes]]

POLL_S: Final = 0.2
# A rank whose peer died sees its connection break and leaves a record of that: worth a wait.
LEAVE_S: Final = 5.0
# From SIGTERM to SIGKILL: time to write a record.
GRACE_S: Final = 15.0

PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class Seat:
    """What a run has of this machine."""

    cpus: list[int]
    """Shared out evenly among its ranks, in their order; empty: nothing is bound."""
    gpus: list[str]
    told: Mapping[str, str] = field(default_factory=dict)
    """Further variables of its environment."""


def start(results: Path, run: Run, attempt: AttemptPaths, seat: Seat) -> Ranks:
    """Start every rank of the run."""
    command = [sys.executable, "-P", "-u", "-m", "hpcncf.worker", str(results), "--run", run.id]
    known = _environment(run, attempt, seat)
    share, cpus, ranks = run.resources.cpus_per_task, seat.cpus, Ranks()
    for rank in range(run.resources.world_size):
        own = {name: str(rank) for name in ("RANK", "LOCAL_RANK", *_slurms_rank(known))}
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


def _slurms_rank(env: Mapping[str, str]) -> list[str]:
    return [name for name in ("SLURM_PROCID", "SLURM_LOCALID") if name in env]


def _environment(run: Run, attempt: AttemptPaths, seat: Seat) -> dict[str, str]:
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
        "CUDA_VISIBLE_DEVICES": ",".join(seat.gpus),
        "HPCNCF_ATTEMPT": str(attempt.number),
        "HPCNCF_LAUNCHED_BY": "local",
        "HPCNCF_NODE_CPUS": ",".join(str(cpu) for cpu in seat.cpus),
        **seat.told,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def bound_to(cpus: list[int]) -> Iterator[None]:
    """This thread on `cpus` only: what it starts meanwhile inherits that before its first line."""
    if sys.platform != "linux" or not cpus:
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


class Watch:
    """The ranks of one run, looked at now and then until every one of them is gone.

    They are ended at the limit, when told, or after one of them failed: by SIGTERM, and after a
    grace by SIGKILL, workers included.
    """

    def __init__(
        self,
        ranks: Ranks,
        limit_s: float,
        told_to_stop: Callable[[], bool],
        leave_s: float = LEAVE_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._ranks, self._told_to_stop = ranks, told_to_stop
        self._leave_s, self._grace_s = leave_s, grace_s
        self._deadline = time.monotonic() + limit_s
        self._failed_at: float | None = None
        self._ending: Reason | None = None
        self._kill_at = 0.0

    def look(self) -> Reason | None:
        """Why they ended, once all have."""
        codes, now = [rank.poll() for rank in self._ranks], time.monotonic()
        if None not in codes:
            return self._ending or "exited"
        if self._failed_at is None and any(codes):
            self._failed_at = now
        if self._ending is None:
            self._ending = self._why_to_end(now)
            if self._ending is not None:
                self._kill_at = now + self._grace_s
                self._send(signal.SIGTERM)
        elif now > self._kill_at:
            self._kill()
        return None

    def pass_on(self, signum: int) -> None:
        """To each rank, which decides what to do."""
        self._send(signal.Signals(signum))

    def _why_to_end(self, now: float) -> Reason | None:
        if self._told_to_stop():
            return "cancelled"
        if now > self._deadline:
            return "timeout"
        failed = self._failed_at is not None and now > self._failed_at + self._leave_s
        return "exited" if failed else None

    def _send(self, signum: signal.Signals) -> None:
        for rank in self._ranks:
            if rank.poll() is None:
                rank.send_signal(signum)

    def _kill(self) -> None:
        for rank in self._ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
