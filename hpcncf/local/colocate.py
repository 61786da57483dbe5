"""Several runs side by side on one node or GPU, with NVIDIA MPS if asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.spec import Resources
from hpcncf.local import processes
from hpcncf.local.processes import POLL_S, Ranks, Seat, Watch
from hpcncf.monitor import gpu
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.schema import EndReason, Packed, write_record_with_retries
from hpcncf.worker.attempt import build_end
from hpcncf.worker.recorder import PACKED

# The daemon's pipes and logs lie in a folder that only this user may open and no other job knows,
# so that jobs on one node never meet, and a daemon that a site runs is left alone.
# Source: https://docs.nvidia.com/deploy/mps/

CONTROL: Final = "nvidia-cuda-mps-control"
ANSWER_S: Final = 30.0
ENDED_S: Final = 5.0
OURS: Final = "HPCNCF_MPS"
"""A variable of the daemon and its servers, and of no client."""


@dataclass(frozen=True)
class Served:
    """What the clients of a daemon need to know."""

    gpus: list[str]
    """As a client names them: the daemon renumbers the GPUs that it was started with."""
    running: bool = False
    problem: str | None = None
    """Why a requested daemon is missing."""
    variables: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def started(wanted: bool, gpus: Sequence[str]) -> Iterator[Served]:
    """Run the daemon for these GPUs. If it does not start, a line says so, and the runs share the
    GPUs without it."""
    if not wanted:
        yield Served(list(gpus))
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="hpcncf-mps-"))  # a socket's path must be short
    except OSError as error:
        yield _missed(gpus, f"no folder for its pipes: {error}")
        return
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    named = uuids(gpus)
    own = {"CUDA_VISIBLE_DEVICES": ",".join(named or gpus), OURS: str(folder)}
    env = os.environ | variables | own
    try:
        problem = _start(env)
        if problem:
            _end(env)  # it may only have been slow to answer
            yield _missed(gpus, problem)
            return
        try:
            numbers = [str(number) for number in range(len(gpus))]
            yield Served(named or numbers, True, None, variables)
        finally:
            _end(env)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def uuids(gpus: Sequence[str]) -> list[str]:
    """The UUIDs of the GPUs, which NVML, the daemon and its clients understand alike; empty if NVML
    does not know all of them."""
    known = {device.identity.index: device.identity for device in gpu.open_gpus()}
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    found = [known[index].uuid for index in gpu.allowed(known.values(), env)]
    return found if len(found) == len(gpus) and all(found) else []


def _missed(gpus: Sequence[str], problem: str) -> Served:
    sys.stderr.write(f"hpcncf: mps: {problem}: the runs share the GPU without it\n")
    return Served(list(gpus), problem=problem)


def _start(env: Mapping[str, str]) -> str | None:
    """Start the daemon; returns why it does not answer, or None."""
    if shutil.which(CONTROL) is None:
        return f"there is no {CONTROL} on this node"
    return _control(env, "-d") or _control(env, command="get_server_list")


def _undisturbed() -> None:
    """Slurm sends its warning, and the SIGTERM of a preemption or of scancel, to every process of
    the step: the ranks then write their checkpoints with the daemon's help."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])


def _end(env: Mapping[str, str]) -> None:
    """End the daemon by its own command, and kill what remains of it and its servers."""
    _control(env, command="quit")
    ours = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # another user's, or gone
            if process.environ().get(OURS) == env[OURS]:
                ours.append(process)
    _, remaining = psutil.wait_procs(ours, timeout=ENDED_S)
    for process in remaining:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _control(env: Mapping[str, str], *options: str, command: str = "") -> str | None:
    """Start the daemon by its option, or send it a command; returns the problem, or None."""
    # A file, for the daemon may keep what it was given to write to: a pipe would not end. The
    # daemon's own are control.log and server.log.
    log = Path(env["CUDA_MPS_LOG_DIRECTORY"], "answer.log")
    try:
        with log.open("w") as said:
            code = subprocess.run(
                [CONTROL, *options],
                env=env,
                input=f"{command}\n",
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=ANSWER_S,
                check=False,
                preexec_fn=_undisturbed,
            ).returncode
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it gave no reason"]
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{CONTROL} does not answer: {error}"
    words = " ".join([CONTROL, *options, command]).strip()
    return f"{words} ended with exit code {code}: {last[0]}" if code else None


@dataclass(frozen=True)
class Machine:
    """Cores and GPUs of a pack."""

    cpus: list[int]
    """Empty: nothing is bound."""
    gpus: list[str]
    """By the names that this job has for them; Slurm may use UUIDs."""
    variables: Mapping[str, str]
    """Further variables of every rank's environment."""


@dataclass(frozen=True)
class Orders:
    """How a local queue or a Slurm task starts and stops the runs of a pack."""

    take: Callable[[Run], AttemptPaths]
    """Raises HpcncfError or OSError if the run cannot be started."""
    should_stop: Callable[[str], bool]
    """Whether the run of this id is to end."""
    interrupted: Callable[[], int | None] = lambda: None
    """The signal that ends all runs; none is started after it, and their records name it."""
    grace_s: float = processes.GRACE_S


@dataclass(frozen=True)
class Member:
    run: Run
    attempt: AttemptPaths
    ranks: Ranks
    watch: Watch


class Working:
    """Runs a pack; `members` are its running runs, which get signals passed on."""

    def __init__(self, paths: ResultPaths, on: Machine, orders: Orders) -> None:
        self._paths, self._on, self._orders = paths, on, orders
        self.members: list[Member] = []

    def work(self, runs: Sequence[Run]) -> list[int]:
        """Run the pack to its end; returns the exit codes of all ranks, 1 for a run not started.

        A run that cannot be started, or fails, does not stop the others.
        """
        taken = []
        for run in runs:
            try:
                taken.append((run, self._orders.take(run)))
            except (HpcncfError, OSError) as problem:
                sys.stderr.write(f"run {run.id}: {problem}\n")
        codes = [1] * (len(runs) - len(taken))
        if not taken:
            return codes
        resources = taken[0][0].resources
        with started(resources.mps, self._on.gpus) as served:
            packed = Packed(
                runs=[run.id for run, _ in taken],
                runs_per_gpu=min(resources.runs_per_gpu, len(taken)),
                mps=served.running,
                mps_missing=served.problem,
            )
            for slot, (run, attempt) in enumerate(taken):
                gpus = slot_gpus(slot, run.resources, served.gpus)
                variables = {**self._on.variables, **served.variables}
                if run.resources.packed:
                    variables[PACKED] = packed.model_dump_json()
                seat = Seat(slot_cpus(slot, run.resources, self._on.cpus), gpus, variables)
                codes += [] if self._start(run, attempt, seat) else [1]
            return codes + self._watch()

    def _start(self, run: Run, attempt: AttemptPaths, seat: Seat) -> bool:
        if self._orders.interrupted():
            return False
        try:
            ranks = processes.start(self._paths.folder, run, attempt, seat)
        except OSError as problem:
            sys.stderr.write(f"run {run.id}: {problem}\n")
            return False
        stop = partial(self._orders.should_stop, run.id)
        limit_s = run.resources.timeout_min * 60
        watch = Watch(ranks, limit_s, stop, grace_s=self._orders.grace_s)
        self.members.append(Member(run, attempt, ranks, watch))
        if signum := self._orders.interrupted():  # it came before these ranks had started
            watch.pass_on(signum)
        return True

    def _watch(self) -> list[int]:
        """Wait until all runs have ended; returns the exit codes."""
        running, codes = list(self.members), list[int]()
        while running:
            for member in list(running):
                if reason := member.watch.look():
                    running.remove(member)
                    codes += self._write_end(member, reason)
            time.sleep(POLL_S if running else 0)
        self.members.clear()
        return codes

    def _write_end(self, member: Member, reason: EndReason) -> list[int]:
        codes = [rank.returncode for rank in member.ranks]
        if not (self._orders.interrupted() and reason == "exited"):
            end = build_end(member.run, member.attempt, reason, codes)
            try:
                write_record_with_retries(member.attempt.end, end)
            except OSError as problem:
                sys.stderr.write(f"run {member.run.id}: {problem}\n")
        return [0] if reason == "cancelled" else codes


def slot_cpus(slot: int, resources: Resources, ordered: Sequence[int]) -> list[int]:
    """The CPUs of the run in this slot of a job. `ordered`: the job's, with those of a core in a
    row."""
    each = resources.cores
    return list(ordered[slot * each : (slot + 1) * each])


def slot_gpus(slot: int, resources: Resources, visible: Sequence[str]) -> list[str]:
    """The GPUs of the run in this slot, by the names that the job has for them."""
    each = resources.gpus_per_node
    first = slot // resources.runs_per_gpu * each
    return list(visible[first : first + each])
