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
from types import FrameType
from typing import Final

import psutil

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run, batched
from hpcncf.job.spec import Resources
from hpcncf.local import machine, processes
from hpcncf.local.processes import POLL_S, Ranks, Reason, Seat, Watch
from hpcncf.monitor import gpu
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.monitor.node import spread
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.schema import End, Packed, utc_now, write_record_with_retries
from hpcncf.state.decide import complete, last_attempt
from hpcncf.submit.cancel import CancelCheck
from hpcncf.worker.allocation import cpus_of_job
from hpcncf.worker.attempt import take_or_join
from hpcncf.worker.environment import Place, slurm_job_id
from hpcncf.worker.recorder import PACKED
from hpcncf.worker.signals import BY_TASK, Held, stopped_task

# Its pipes and logs lie in a folder that only this user may open and no other job knows, so
# that
# jobs on one node never meet, and a daemon that a site runs is left alone.
# Source: https://docs.nvidia.com/deploy/mps/

CONTROL: Final = "nvidia-cuda-mps-control"
ANSWER_S: Final = 30.0
ENDED_S: Final = 5.0
OURS: Final = "HPCNCF_MPS"
"""The variable by which the daemon and its servers are known: no client has it."""


@dataclass(frozen=True)
class Served:
    """What its clients are to know."""

    gpus: list[str]
    """As a client names them: by number, the daemon counts anew those that it was started with."""
    running: bool = False
    problem: str | None = None
    """Why there is none, where one was asked for."""
    variables: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def started(wanted: bool, gpus: Sequence[str]) -> Iterator[Served]:
    """The daemon for these GPUs; where it does not start, one line says so and the runs share them
    without it."""
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
    """The same GPUs by UUID, which NVML, the daemon and its clients understand alike; empty where
    NVML does not tell all of them."""
    found = gpu.open_gpus()
    by_index = {one.index: one.uuid for one in found.identities} if found else {}
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    indices = gpu.allowed(found.identities, env) if found else []
    told = [by_index[index] for index in indices]
    return told if len(told) == len(gpus) and all(told) else []


def _missed(gpus: Sequence[str], problem: str) -> Served:
    sys.stderr.write(f"hpcncf: mps: {problem}: the runs share the GPU without it\n")
    return Served(list(gpus), problem=problem)


def _start(env: Mapping[str, str]) -> str | None:
    """Why it did not; None where it answers."""
    if shutil.which(CONTROL) is None:
        return f"there is no {CONTROL} on this node"
    # A file, for the daemon may keep what it was given to write to: a pipe would not end.
    log = Path(env["CUDA_MPS_LOG_DIRECTORY"], "start.log")
    try:
        with log.open("w") as said:
            started = subprocess.run(
                [CONTROL, "-d"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=ANSWER_S,
                check=False,
                preexec_fn=_undisturbed,
            )
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it gave no reason"]
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{CONTROL} did not start: {error}"
    if started.returncode:
        return f"{CONTROL} ended with exit code {started.returncode}: {last[0]}"
    return _control_mps("get_server_list", env)


def _undisturbed() -> None:
    """Slurm sends its warning, and the SIGTERM of a preemption or of scancel, to every process of
    the step: the ranks then write their checkpoints with the daemon's help."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])


def _end(env: Mapping[str, str]) -> None:
    """By its own command; by force where it, or a server of its, stays."""
    _control_mps("quit", env)
    _, left = psutil.wait_procs(_processes(env), timeout=ENDED_S)
    for each in left:
        with contextlib.suppress(psutil.Error):
            each.kill()


def _processes(env: Mapping[str, str]) -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if _mark(each) == env[OURS]]


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(OURS)
    except (psutil.Error, OSError):  # another user's, or gone
        return None


def _control_mps(command: str, env: Mapping[str, str]) -> str | None:
    """What went wrong, if anything did."""
    try:
        said = subprocess.run(
            [CONTROL],
            env=env,
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{CONTROL} does not answer: {error}"
    if said.returncode == 0:
        return None
    last = (said.stdout + said.stderr).strip().splitlines()[-1:] or ["it gave no reason"]
    return f"{CONTROL}: {command}: {last[0]}"


@dataclass(frozen=True)
class Machine:
    """What a pack has to itself."""

    cpus: list[int]
    """Empty: nobody confines it, so it confines nobody."""
    gpus: list[str]
    """As this job names its own; Slurm may name them by their UUIDs."""
    told: Mapping[str, str]
    """Further variables of every rank's environment."""


@dataclass(frozen=True)
class Orders:
    """How the one who starts a pack wants it worked at."""

    take: Callable[[Run], AttemptPaths]
    """Raises HpcncfError or OSError where the run cannot be begun."""
    told_to_stop: Callable[[str], bool]
    """Whether a run, by its id, is to end."""
    interrupted: Callable[[], int | None] = lambda: None
    """The signal that ends them all: then nothing more is begun, and their records tell why."""
    grace_s: float = processes.GRACE_S


@dataclass(frozen=True)
class Member:
    run: Run
    attempt: AttemptPaths
    ranks: Ranks
    watch: Watch


class Working:
    """The pack that is being worked at, for those that signals are passed on to."""

    def __init__(self, paths: ResultPaths, on: Machine, orders: Orders) -> None:
        self._paths, self._on, self._orders = paths, on, orders
        self.members: list[Member] = []

    def work(self, runs: Sequence[Run]) -> list[int]:
        """From start to end; returns the exit codes of all ranks, 1 for a run not begun.

        One that cannot be begun, or fails, does not keep the others from being run.
        """
        taken = [(run, attempt) for run in runs if (attempt := self._taken(run))]
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
                begun = self._begin(run, attempt, self._seat(slot, run, packed, served))
                codes += [] if begun else [1]
            return codes + self._watched()

    def _taken(self, run: Run) -> AttemptPaths | None:
        try:
            return self._orders.take(run)
        except (HpcncfError, OSError) as problem:
            sys.stderr.write(f"run {run.id}: {problem}\n")
            return None

    def _seat(self, slot: int, run: Run, packed: Packed, served: Served) -> Seat:
        gpus = slot_gpus(slot, run.resources, served.gpus)
        told = {**self._on.told, **served.variables}
        if run.resources.packed:
            told[PACKED] = packed.model_dump_json()
        return Seat(slot_cpus(slot, run.resources, self._on.cpus), gpus, told)

    def _begin(self, run: Run, attempt: AttemptPaths, seat: Seat) -> bool:
        if self._orders.interrupted():
            return False
        try:
            ranks = processes.start(self._paths.folder, run, attempt, seat)
        except OSError as problem:
            sys.stderr.write(f"run {run.id}: {problem}\n")
            return False
        stop = partial(self._orders.told_to_stop, run.id)
        limit_s = run.resources.timeout_min * 60
        watch = Watch(ranks, limit_s, stop, grace_s=self._orders.grace_s)
        self.members.append(Member(run, attempt, ranks, watch))
        if signum := self._orders.interrupted():  # it came before there was anybody to hear it
            watch.pass_on(signum)
        return True

    def _watched(self) -> list[int]:
        """The exit codes, when all have ended."""
        going, codes = list(self.members), list[int]()
        while going:
            for member in list(going):
                if reason := member.watch.look():
                    going.remove(member)
                    codes += self._ended(member, reason)
            time.sleep(POLL_S if going else 0)
        self.members.clear()
        return codes

    def _ended(self, member: Member, reason: Reason) -> list[int]:
        left = [rank.returncode for rank in member.ranks]
        if not (self._orders.interrupted() and reason == "exited"):
            end = End(
                run_id=member.run.id,
                attempt=member.attempt.number,
                reason=reason,
                exit_codes=list(left),
                ended_at=utc_now(),
            )
            try:
                write_record_with_retries(member.attempt.end, end)
            except OSError as problem:
                sys.stderr.write(f"run {member.run.id}: {problem}\n")
        return [0] if reason == "cancelled" else left


# The task has the cores, GPUs and memory of all of them. Its process only places them, waits,
# passes
# signals on and knows each run's limit; when a signal has ended them it has the job put back.

# From the run's limit, at which it is to stop with a checkpoint, to SIGKILL.
GRACE_S: Final = 60.0


def work(paths: ResultPaths, runs: Sequence[Run], again: bool, over: Mapping[str, int]) -> int:
    """One pack after another; returns the exit code. A run that fails ends no other run; a signal
    ends all."""
    return _Task(paths, runs[0].resources, again, over).work(runs)


class _Task:
    def __init__(
        self, paths: ResultPaths, resources: Resources, again: bool, over: Mapping[str, int]
    ) -> None:
        self._paths, self._resources, self._again, self._over = paths, resources, again, over
        self._word = CancelCheck(paths, job_id=slurm_job_id())
        self._told: int | None = None
        orders = Orders(self._take, self._word.is_cancelled, lambda: self._told, GRACE_S)
        self._working = Working(paths, _machine(resources), orders)
        for each in (signal.SIGTERM, signal.SIGUSR2):
            held = signal.getsignal(each)
            signal.signal(each, self._pass_on)
            if isinstance(held, Held) and held.came:
                self._told = each

    def work(self, runs: Sequence[Run]) -> int:
        codes = [0]
        for together in batched(runs, self._resources.side_by_side):
            left = [run for run in together if self._wanted(run)]
            if left and self._told is None:
                codes += self._working.work(left)
        if self._told is not None and any(self._wanted(run) for run in runs):
            return stopped_task(self._told, self._resources.requeues)
        worst = max(codes, key=abs)
        return worst if worst >= 0 else 128 - worst

    def _wanted(self, run: Run) -> bool:
        if self._word.is_cancelled(run.id):
            return False
        attempt = last_attempt(self._paths.run(run.id))
        if attempt is None or not complete(run, attempt):
            return True
        # What was asked for again is done where this very job did it, in this start or an earlier.
        by = attempt.claim.slurm_job_id if attempt.claim else None
        return self._again and by != slurm_job_id()

    def _take(self, run: Run) -> AttemptPaths:
        return take_or_join(run, self._paths.run(run.id), Place(), self._over.get(run.id, 0))

    def _pass_on(self, signum: int, _frame: FrameType | None) -> None:
        self._told = self._told or signum
        for member in self._working.members:
            member.watch.pass_on(signum)


def _machine(resources: Resources) -> Machine:
    """What Slurm gave the job here."""
    wanted, usable = resources.node_cores, usable_cpus()
    granted = cpus_of_job() or wanted
    confined = wanted <= len(usable) <= granted
    if not confined:
        sys.stderr.write(
            f"hpcncf: the job was granted {granted:g} CPUs and may use {len(usable)}: its runs "
            "are not bound to cores of their own, for these may be another job's\n"
        )
    cpus = spread(usable, wanted) if confined else []
    return Machine(cpus, machine.gpus(), _as_a_step(resources))


def _as_a_step(resources: Resources) -> dict[str, str]:
    """Each run is told what a step of its own would be: its ranks and cores, not the job's."""
    ranks = str(resources.tasks_per_node)
    names = ("NTASKS", "NPROCS", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "TASKS_PER_NODE")
    told = {f"SLURM_{name}": ranks for name in names}
    told["SLURM_CPUS_PER_TASK"] = str(resources.cpus_per_task)
    by = os.environ.get("HPCNCF_LAUNCHED_BY", "slurm")
    return told | {"HPCNCF_LAUNCHED_BY": by, BY_TASK: "1"}


def slot_cpus(slot: int, resources: Resources, ordered: Sequence[int]) -> list[int]:
    """The CPUs of the run in this slot of a job; `ordered`: the job's, those of a core in a row."""
    each = resources.cores
    return list(ordered[slot * each : (slot + 1) * each])


def slot_gpus(slot: int, resources: Resources, visible: Sequence[str]) -> list[str]:
    """The GPUs of the run in this slot, by the names that the job has for them."""
    each = resources.gpus_per_node
    first = slot // resources.runs_per_gpu * each
    return list(visible[first : first + each])
