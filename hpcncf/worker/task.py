"""The runs of one Slurm task, and torchrun on each node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from hpcncf.job.packs import batched
from hpcncf.job.plan import Run
from hpcncf.job.spec import Resources
from hpcncf.launcher import environment
from hpcncf.launcher.allocation import cpus_of_job
from hpcncf.launcher.environment import Place, place, slurm_job_id
from hpcncf.launcher.rendezvous import (
    found_store,
    host_others,
    listening,
    meeting_of_run,
    own_address,
    resolved,
)
from hpcncf.launcher.requeue import BY_TASK, restart, stopped_task
from hpcncf.launcher.signals import SIGNALS, FirstSignal, hold, ignore
from hpcncf.monitor.cgroup import in_slurm_step, usable_cpus
from hpcncf.monitor.gpu import visible_gpus
from hpcncf.monitor.topology import cores, spread
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.claims import attempt_of_start
from hpcncf.records.plan_file import read_plan
from hpcncf.records.schema import EndReason, write_record_with_retries
from hpcncf.state.cancel_check import CancelCheck
from hpcncf.worker.attempt import build_end, needs_run, take_or_join
from hpcncf.worker.child_process import shell_code
from hpcncf.worker.pack import LaunchPolicy, Machine, PackRunner
from hpcncf.worker.process_exit import exit_after_main
from hpcncf.worker.processes import end_with_parent

# Longer than any task takes to start on a busy machine.
TIMEOUT_S: Final = 600.0


def command(run: Run, worker: Sequence[str], env: Mapping[str, str] = os.environ) -> list[str]:
    """Build the torchrun command for this node, after all nodes agreed on a port.

    `worker`: the words behind `-m`.
    """
    address, port = _agree_on_store(run.id, environment.place(env), env)
    return [
        *(sys.executable, "-P", "-u", "-m", "torch.distributed.run"),
        *("--nnodes", str(run.resources.nodes), "--node-rank", env.get("SLURM_NODEID", "0")),
        *("--nproc-per-node", str(run.resources.tasks_per_node), "--max-restarts", "0"),
        *("--master-addr", address, "--master-port", str(port)),
        *("--no-python", sys.executable, "-P", "-u", "-m", *worker),
    ]


def _agree_on_store(run_id: str, task: Place, env: Mapping[str, str]) -> tuple[str, int]:
    """Agree with the other nodes on the address and port of torchrun's store.

    The store itself is created by the torchrun of the first node.
    """
    at = meeting_of_run(f"{run_id} torchrun", env)
    if task.rank != 0:
        address = resolved(at.host)
        return address, found_store(at, address, TIMEOUT_S)
    address = own_address(at.host, env)
    with listening("", at.ports[8:]) as probe:  # it listens on all addresses
        port = probe.getsockname()[1]
    if task.world_size > 1:
        desk = listening(address, at.ports[:8])
        host_others(at, desk, port, task.world_size - 1)
    return address, port


def prepare() -> None:
    """Prepare a new process for torchrun: it ends with its parent, and SIGUSR2 is blocked.

    Slurm may send its warning to every process of the step, and torchrun would end by it. Blocked,
    it waits; torchrun's ranks inherit that, and open up for it when they can handle it.
    """
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])


def pass_on(agent: subprocess.Popen[bytes], signum: int) -> None:
    """Send a signal to torchrun's ranks, but not to torchrun itself.

    Asked to end, torchrun would give its ranks half a minute and then fail.
    """
    try:
        ranks = psutil.Process(agent.pid).children()
    except psutil.NoSuchProcess:
        return
    for rank in ranks:
        try:
            rank.send_signal(signum)
        except psutil.NoSuchProcess:
            continue
    if not ranks:  # it is still starting
        agent.terminate()


def own_cpus(usable: Sequence[int], place: Place) -> list[int]:
    """Return this rank's even share of the task's CPUs, or all if they are fewer than ranks."""
    share = len(usable) // place.local_world_size
    return list(usable[place.local_rank * share : (place.local_rank + 1) * share] or usable)


def bind(env: Mapping[str, str] = os.environ) -> None:
    """Bind a rank that torchrun started in a Slurm step to CPUs of its own, as srun does."""
    if "TORCHELASTIC_RUN_ID" in env and in_slurm_step(env):
        place = environment.place(env)
        # By core: two ranks on the hardware threads of one would slow each other down.
        usable = [cpu for core in cores(os.sched_getaffinity(0)) for cpu in core.cpus]
        os.sched_setaffinity(0, own_cpus(usable, place))


# A single run is run in this process. Each of several gets processes of its own, so that its record
# measures it alone; this one waits, passes signals on, and ends a run at its time limit. Ranks go
# through the list in step, since each run waits for all its ranks.

POLL_S: Final = 0.2
# From the run's limit, at which it is to stop with a checkpoint, to SIGKILL.
GRACE_S: Final = 60.0

TaskProcess = subprocess.Popen[bytes]


def work(results: str, run_ids: Sequence[str], again: bool, over: Mapping[str, int]) -> None:
    """Work as one rank of each run in turn. Raises SystemExit with a failure's exit code.

    `over`: run -> the attempt up to which all are known to have ended.
    """
    hold((*SIGNALS, signal.SIGCONT))  # submitit's handlers end here
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    paths = ResultPaths(Path(results))
    planned = {run.id: run for run in read_plan(paths).runs}
    runs = [planned[run_id] for run_id in run_ids]
    if runs[0].resources.packed:
        code = _SideBySide(paths, runs, again, over).work()
    elif len(runs) == 1 and runs[0].resources.launcher == "srun":
        from hpcncf.worker.rank import work

        code = work(Path(results), run_ids[0], again, over.get(run_ids[0], 0))
    else:
        code = _OneAfterAnother(paths, runs, again, over).work()
    ignore()
    exit_after_main(code)
    if code:
        raise SystemExit(code)


class _Task:
    """Runs of one Slurm task; if it is requeued, the task executes the incomplete ones again."""

    def __init__(
        self, paths: ResultPaths, runs: Sequence[Run], again: bool, over: Mapping[str, int]
    ) -> None:
        self._paths, self._runs, self._again, self._over = paths, runs, again, over
        self._resources = runs[0].resources
        self._cancelled = CancelCheck(paths, job_id=slurm_job_id())
        self._signal = FirstSignal(self._send)

    def _is_unfinished(self, run: Run) -> bool:
        cancelled = self._cancelled.is_cancelled(run.id)
        return not cancelled and needs_run(self._paths, run, self._again)

    def _send(self, signum: int) -> None:
        """Send a signal to the runs that are being executed."""
        raise NotImplementedError


class _SideBySide(_Task):
    """Task that runs packs: the runs of a pack share the job's cores, GPUs and memory.

    A failed run ends no other; a signal ends all.
    """

    def __init__(
        self, paths: ResultPaths, runs: Sequence[Run], again: bool, over: Mapping[str, int]
    ) -> None:
        policy = LaunchPolicy(
            self._take,
            lambda run_id: self._cancelled.is_cancelled(run_id),
            lambda: self._signal.signum,
            GRACE_S,
        )
        self._runner = PackRunner(paths, _machine(runs[0].resources), policy)
        super().__init__(paths, runs, again, over)  # from here on signals are passed on

    def work(self) -> int:
        """Execute one pack after another; return the exit code of the task."""
        codes = [0]
        for together in batched(self._runs, self._resources.side_by_side):
            unfinished = [run for run in together if self._is_unfinished(run)]
            if unfinished and self._signal.signum is None:
                codes += self._runner.work(unfinished)
        signum = self._signal.signum
        if signum is not None and any(self._is_unfinished(run) for run in self._runs):
            return stopped_task(signum, self._resources.requeues)
        return shell_code(max(codes, key=abs))

    def _take(self, run: Run) -> AttemptPaths:
        return take_or_join(run, self._paths.run(run.id), Place(), self._over.get(run.id, 0))

    def _send(self, signum: int) -> None:
        for member in self._runner.members:
            member.watch.pass_on(signum)


def _machine(resources: Resources) -> Machine:
    """Return the job's cores and GPUs on this node, and further variables for its runs.

    The variables are those that each run would have in a Slurm step of its own.
    """
    wanted, usable = resources.node_cores, usable_cpus()
    allocated = cpus_of_job() or wanted
    confined = wanted <= len(usable) <= allocated
    if not confined:
        sys.stderr.write(
            f"hpcncf: {allocated:g} CPUs are allocated to the job and {len(usable)} are usable, "
            "some of which may be another job's: its runs are not bound to cores of their own\n"
        )
    cpus = spread(usable, wanted) if confined else []
    names = ("NTASKS", "NPROCS", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "TASKS_PER_NODE")
    variables = {f"SLURM_{name}": str(resources.tasks_per_node) for name in names}
    variables["SLURM_CPUS_PER_TASK"] = str(resources.cpus_per_task)
    variables["HPCNCF_LAUNCHED_BY"] = os.environ.get("HPCNCF_LAUNCHED_BY", "slurm")
    return Machine(cpus, visible_gpus(), variables | {BY_TASK: "1"})


class _OneAfterAnother(_Task):
    """Task that executes its runs in turn, each rank in a process of its own."""

    _child: TaskProcess | None = None
    _by_torchrun = False

    def work(self) -> int:
        """Execute one run after another; return the exit code of the task.

        A failed run does not keep the next one from starting, but a signal does. Rank 0 then
        requeues the task if a run is left.
        """
        codes, unfinished = [0], False
        for run in self._runs:
            if self._cancelled.is_cancelled(run.id):
                continue
            if self._signal.signum is not None:
                unfinished |= needs_run(self._paths, run, self._again)
                continue
            codes.append(self._run(run))
            unfinished |= codes[-1] != 0 and self._signal.signum is not None
        if not unfinished or self._signal.signum is None:
            return max(codes)
        if place().rank != 0:
            return 0
        return stopped_task(self._signal.signum, self._resources.requeues)

    def _run(self, run: Run) -> int:
        """Execute one run in processes of its own; return its exit code, 0 if it was cancelled."""
        self._by_torchrun = run.resources.launcher == "torchrun"
        given = [str(self._paths.folder), "--run-id", run.id]
        given += ["--over", str(self._over.get(run.id, 0)), *["--again"] * self._again]
        worker = ["hpcncf.worker", *given]
        self._child = subprocess.Popen(
            command(run, worker)
            if self._by_torchrun
            else [sys.executable, "-P", "-u", "-m", *worker],
            env=os.environ | {BY_TASK: "1"},
            preexec_fn=prepare if self._by_torchrun else end_with_parent,
        )
        deadline = time.monotonic() + run.resources.timeout_min * 60
        code = _wait(self._child, deadline, lambda: self._cancelled.is_cancelled(run.id))
        reason: EndReason | None = None
        if code is None:
            if self._signal.signum is None:
                reason = "cancelled" if self._cancelled.is_cancelled(run.id) else "timeout"
            self._send(signal.SIGTERM)
            code = _wait(self._child, time.monotonic() + GRACE_S)
        if code is None:
            self._child.kill()
            code = self._child.wait()
        self._child = None
        # Another rank may have seen the cancellation first, and ours failed when that one left.
        now = CancelCheck(self._paths, 0.0, slurm_job_id())
        if code and reason is None and now.is_cancelled(run.id):
            reason = "cancelled"
        if reason and place().rank == 0:
            self._write_end(run, reason, code)
        if reason == "cancelled":
            return 0
        return shell_code(code)

    def _write_end(self, run: Run, reason: EndReason, code: int) -> None:
        """Record the reason for which the run was asked to stop, in its attempt's end record."""
        attempt = attempt_of_start(self._paths.run(run.id), slurm_job_id(), restart())
        if attempt is None:
            return
        codes = [code, *[None] * (run.resources.world_size - 1)]
        write_record_with_retries(attempt.end, build_end(run, attempt, reason, codes))

    def _send(self, signum: int) -> None:
        child = self._child
        if child is None or child.poll() is not None:
            return
        if self._by_torchrun:
            pass_on(child, signum)
        else:
            child.send_signal(signum)


def _wait(
    child: TaskProcess, deadline: float, cancelled: Callable[[], bool] = lambda: False
) -> int | None:
    """Wait for the child; return its exit code, None at the deadline or a cancellation."""
    while (code := child.poll()) is None and time.monotonic() < deadline and not cancelled():
        time.sleep(POLL_S)
    return code


def write_report(results: str) -> None:
    """Run `hpcncf collect` and `hpcncf report`, when all runs of a submission have ended.

    Raises SystemExit if no report can be written; an incomplete job gets one, too.
    """
    for verb in ("collect", "report"):
        command = [sys.executable, "-P", "-m", "hpcncf", verb, results]
        code = subprocess.run(command, cwd=Path(results), check=False).returncode
        if code not in (0, 3):
            raise SystemExit(code)
