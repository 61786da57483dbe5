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
from typing import Final

from hpcncf.job.plan import Run
from hpcncf.paths import AttemptPaths
from hpcncf.records.schema import EndReason

Ranks = list[subprocess.Popen[bytes]]

POLL_S: Final = 0.2
# A rank whose peer died sees its connection break, and gets time to write a record of that.
LEAVE_S: Final = 5.0
# From SIGTERM to SIGKILL: time to write a record.
GRACE_S: Final = 15.0

PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class Placement:
    """A run's cores and GPUs on this machine."""

    cpus: list[int]
    """Divided evenly among its ranks, in their order; empty: nothing is bound."""
    gpus: list[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables of its environment."""


def start(results: Path, run: Run, attempt: AttemptPaths, placement: Placement) -> Ranks:
    """Start a process for every rank of the run, and return the processes."""
    command = [sys.executable, "-P", "-u", "-m", "hpcncf.worker", str(results), "--run", run.id]
    known = _environment(run, attempt, placement)
    share, cpus, ranks = run.resources.cpus_per_task, placement.cpus, Ranks()
    for rank in range(run.resources.world_size):
        slurm = [name for name in ("SLURM_PROCID", "SLURM_LOCALID") if name in known]
        own = {name: str(rank) for name in ("RANK", "LOCAL_RANK", *slurm)}
        with bound_to(cpus[rank * share : (rank + 1) * share]), attempt.log(rank).open("wb") as log:
            ranks.append(
                subprocess.Popen(
                    command,
                    env=known | own,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=0,  # so that a killed rank's DataLoader workers go with it
                    preexec_fn=_begin_rank,
                )
            )
    return ranks


def _environment(run: Run, attempt: AttemptPaths, placement: Placement) -> dict[str, str]:
    """Build the environment of all ranks, without the variables of the queue's submitit job."""
    threads, world = str(run.resources.cpus_per_task), str(run.resources.world_size)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SUBMITIT_", "TORCHELASTIC_"))
    }
    return inherited | {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # Else gloo asks a name server for the host's own name, and may wait for it.
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "CUDA_VISIBLE_DEVICES": ",".join(placement.gpus),
        "HPCNCF_ATTEMPT": str(attempt.number),
        "HPCNCF_LAUNCHED_BY": "local",
        "HPCNCF_NODE_CPUS": ",".join(str(cpu) for cpu in placement.cpus),
        **placement.variables,
    }


@contextlib.contextmanager
def bound_to(cpus: list[int]) -> Iterator[None]:
    """Bind this thread, and processes that it starts, to `cpus` while the block runs."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """Have Linux send this process a signal when its parent dies.

    No rank outlives its queue.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)


def hold_interrupt() -> None:
    """Block SIGINT, so that it waits while Python starts and imports modules."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def _begin_rank() -> None:
    hold_interrupt()
    end_with_parent()


class RankWatch:
    """Watches the ranks of one run until all have ended.

    Ends them at the time limit, if `should_stop` is true, or after one of them failed: by SIGTERM,
    and after `grace_s` by SIGKILL, workers included.
    """

    def __init__(
        self,
        ranks: Ranks,
        limit_s: float,
        should_stop: Callable[[], bool],
        leave_s: float = LEAVE_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._ranks, self._should_stop = ranks, should_stop
        self._leave_s, self._grace_s = leave_s, grace_s
        self._deadline = time.monotonic() + limit_s
        self._failed_at: float | None = None
        self._ending: EndReason | None = None
        self._kill_at = 0.0

    def look(self) -> EndReason | None:
        """Check the ranks and end them if necessary; return the reason once all have ended.

        It returns None while a rank runs, and must be called now and then.
        """
        codes, now = [rank.poll() for rank in self._ranks], time.monotonic()
        if None not in codes:
            return self._ending or "exited"
        if self._failed_at is None and any(codes):
            self._failed_at = now
        if self._ending is None:
            self._ending = self._why_to_end(now)
            if self._ending is not None:
                self._kill_at = now + self._grace_s
                self.pass_on(signal.SIGTERM)
        elif now > self._kill_at:
            for rank in self._ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGKILL)
                    rank.wait()
        return None

    def _why_to_end(self, now: float) -> EndReason | None:
        if self._should_stop():
            return "cancelled"
        if now > self._deadline:
            return "timeout"
        failed = self._failed_at is not None and now > self._failed_at + self._leave_s
        return "exited" if failed else None

    def pass_on(self, signum: int) -> None:
        """Send a signal to each rank that is still running."""
        for rank in self._ranks:
            if rank.poll() is None:
                rank.send_signal(signum)
