"""The runs of one Slurm task, and torchrun on each node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, Literal

import psutil

from hpcncf.job.plan import Run
from hpcncf.local import colocate
from hpcncf.local.processes import end_with_parent
from hpcncf.monitor.node import cores
from hpcncf.paths import ResultPaths
from hpcncf.records.claims import attempt_of_start
from hpcncf.records.results_folder import read_plan
from hpcncf.records.schema import End, utc_now, write_record_with_retries
from hpcncf.state.decide import complete, last_attempt
from hpcncf.submit.cancel import CancelCheck
from hpcncf.worker import environment
from hpcncf.worker.environment import Place, place, slurm_job_id
from hpcncf.worker.recorder import in_the_end
from hpcncf.worker.rendezvous import (
    found_store,
    host_others,
    listening,
    meeting_of_run,
    own_address,
    resolved,
)
from hpcncf.worker.signals import BY_TASK, SIGNALS, Held, hold, ignore, restart, stopped_task

# Its ranks are those of srun in all but their parent: same place, same share of the cores, same
# records.

# Longer than any of the tasks takes to start on a busy machine, shorter than a night.
TIMEOUT_S: Final = 600.0


def command(run: Run, worker: Sequence[str], env: Mapping[str, str] = os.environ) -> list[str]:
    """What each node's task starts; the tasks agree on a port first. `worker`: behind `-m`."""
    address, port = _agreed(run.id, environment.place(env), env)
    return [
        *(sys.executable, "-P", "-u", "-m", "torch.distributed.run"),
        *("--nnodes", str(run.resources.nodes), "--node-rank", env.get("SLURM_NODEID", "0")),
        *("--nproc-per-node", str(run.resources.tasks_per_node), "--max-restarts", "0"),
        *("--master-addr", address, "--master-port", str(port)),
        *("--no-python", sys.executable, "-P", "-u", "-m", *worker),
    ]


def _agreed(run_id: str, task: Place, env: Mapping[str, str]) -> tuple[str, int]:
    """Address and port of torchrun's own store, which the first node's torchrun makes anew."""
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
    """In torchrun's process, before it is one.

    Slurm may send its warning to every process of the step, and torchrun would end by it. Blocked,
    it waits; torchrun's ranks inherit that, and open up for it when they can handle it.
    """
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])


def pass_on(agent: subprocess.Popen[bytes], signum: int) -> None:
    """To the ranks alone: torchrun, told to end, gives them half a minute and fails."""
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
    """A rank's even share of its task's CPUs, in their order; all of them where they are fewer."""
    share = len(usable) // place.local_world_size
    return list(usable[place.local_rank * share : (place.local_rank + 1) * share] or usable)


def bind(env: Mapping[str, str] = os.environ) -> None:
    """On CPUs of its own a rank is as one of srun's, which binds them so."""
    if "TORCHELASTIC_RUN_ID" in env and "SLURM_STEP_ID" in env and sys.platform == "linux":
        place = environment.place(env)
        # By core: two ranks on the hardware threads of one would slow each other down.
        usable = [cpu for core in cores(os.sched_getaffinity(0)) for cpu in core.cpus]
        os.sched_setaffinity(0, own_cpus(usable, place))


# One run is run in this process. Each of several is run in a process of its own, so that its
# record
# measures it alone; this one waits, passes signals on, and ends the run at its time limit. The
# ranks
# of a run go through the list in step, for each run waits for all its ranks.

POLL_S: Final = 0.2
# From the run's limit, at which it is to stop with a checkpoint, to SIGKILL.
GRACE_S: Final = 60.0

Child = subprocess.Popen[bytes]
EndReason = Literal["timeout", "cancelled"]


def work(results: str, run_ids: Sequence[str], again: bool, over: Mapping[str, int]) -> None:
    """Be one rank of each run in turn; Slurm is to see a failure as one.

    `over`: run -> the attempt up to which all are known to have ended.
    """
    hold((*SIGNALS, signal.SIGCONT))  # submitit's handlers end here
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    planned = {run.id: run for run in read_plan(ResultPaths(Path(results))).runs}
    if planned[run_ids[0]].resources.packed:
        runs = [planned[run_id] for run_id in run_ids]
        code = colocate.work(ResultPaths(Path(results)), runs, again, over)
    elif len(run_ids) == 1 and planned[run_ids[0]].resources.launcher == "srun":
        from hpcncf.worker.rank import work

        code = work(Path(results), run_ids[0], again, over.get(run_ids[0], 0))
    else:
        several = _Several(ResultPaths(Path(results)), again, over)
        code = several.work([planned[run_id] for run_id in run_ids])
    ignore()
    in_the_end(code)
    if code:
        raise SystemExit(code)


class _Several:
    """The runs of one task, as one of its ranks sees them."""

    def __init__(self, paths: ResultPaths, again: bool, over: Mapping[str, int]) -> None:
        self._paths, self._again, self._over = paths, again, over
        self._rank = place().rank
        self._child: Child | None = None
        self._told: int | None = None
        self._by_torchrun = False
        self._word = CancelCheck(paths, job_id=slurm_job_id())
        for each in (signal.SIGTERM, signal.SIGUSR2):
            held = signal.getsignal(each)
            signal.signal(each, self._pass_on)
            if isinstance(held, Held) and held.came:
                self._told = each

    def work(self, runs: Sequence[Run]) -> int:
        """The exit code. A run that fails does not keep the next from being run; a signal does."""
        codes, left = [0], False
        for run in runs:
            if self._word.is_cancelled(run.id):
                continue
            if self._was_told():
                left |= not self._done(run)
                continue
            codes.append(self._run(run))
            left |= codes[-1] != 0 and self._was_told()
        return self._stopped(runs[0].resources.requeues) if left else max(codes)

    def _told_off(self, run: Run) -> bool:
        return CancelCheck(self._paths, 0.0, slurm_job_id()).is_cancelled(run.id)

    def _was_told(self) -> bool:
        return self._told is not None

    def _done(self, run: Run) -> bool:
        """By an earlier start of this task, say."""
        attempt = last_attempt(self._paths.run(run.id))
        return not self._again and attempt is not None and complete(run, attempt)

    def _run(self, run: Run) -> int:
        """The exit code; 0 where the run was cancelled, for nothing went wrong then."""
        self._by_torchrun = run.resources.launcher == "torchrun"
        self._child = subprocess.Popen(
            self._command(run),
            env=os.environ | {BY_TASK: "1"},
            preexec_fn=prepare if self._by_torchrun else end_with_parent,
        )
        deadline = time.monotonic() + run.resources.timeout_min * 60
        code = _wait(self._child, deadline, lambda: self._word.is_cancelled(run.id))
        reason: EndReason | None = None
        if code is None:
            cancelled = self._word.is_cancelled(run.id)
            reason = None if self._told else "cancelled" if cancelled else "timeout"
            self._send(self._child, signal.SIGTERM)
            code = _wait(self._child, time.monotonic() + GRACE_S)
        if code is None:
            self._child.kill()
            code = self._child.wait()
        self._child = None
        # Another rank may have heard of it first: ours then failed for want of it.
        if code and reason is None and self._told_off(run):
            reason = "cancelled"
        if reason and self._rank == 0:
            self._leave_end(run, reason, code)
        if reason == "cancelled":
            return 0
        return code if code >= 0 else 128 - code

    def _command(self, run: Run) -> list[str]:
        given = [str(self._paths.folder), "--run-id", run.id]
        given += ["--over", str(self._over.get(run.id, 0)), *["--again"] * self._again]
        if self._by_torchrun:
            return command(run, ["hpcncf.worker", *given])
        return [sys.executable, "-P", "-u", "-m", "hpcncf.worker", *given]

    def _leave_end(self, run: Run, reason: EndReason, code: int) -> None:
        """The run's own record says that it was told to stop; here stands why."""
        attempt = attempt_of_start(self._paths.run(run.id), slurm_job_id(), restart())
        if attempt is None:
            return
        others: list[int | None] = [None] * (run.resources.world_size - 1)
        end = End(
            run_id=run.id,
            attempt=attempt.number,
            reason=reason,
            exit_codes=[code, *others],
            ended_at=utc_now(),
        )
        write_record_with_retries(attempt.end, end)

    def _pass_on(self, signum: int, _frame: FrameType | None) -> None:
        self._told = self._told or signum
        if self._child is not None and self._child.poll() is None:
            self._send(self._child, signum)

    def _send(self, child: Child, signum: int) -> None:
        if self._by_torchrun:
            pass_on(child, signum)
        else:
            child.send_signal(signum)

    def _stopped(self, allowed: int) -> int:
        """The first rank has the task put back, to go on with the runs that are not complete."""
        assert self._told is not None
        return 0 if self._rank != 0 else stopped_task(self._told, allowed)


def _wait(
    child: Child, deadline: float, cancelled: Callable[[], bool] = lambda: False
) -> int | None:
    """Its exit code, or None where it still runs at the deadline, or when it is cancelled."""
    while (code := child.poll()) is None and time.monotonic() < deadline and not cancelled():
        time.sleep(POLL_S)
    return code
