"""What each rank of a Slurm task calls: the task's runs, one after another or side by side.

One run is run in this process. Each of several is run in a process of its own, so that its record
measures it alone; this one waits, passes signals on, and ends the run at its time limit. The ranks
of a run go through the list in step, for each run waits for all its ranks.
"""

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

from hpcncf import claims, records
from hpcncf.local.processes import end_with_parent
from hpcncf.paths import ResultPaths
from hpcncf.plan import Run
from hpcncf.rank import ending, launcher, requeue, side_by_side, stopping, torchrun
from hpcncf.rank.word import Word
from hpcncf.records import End
from hpcncf.results import read_plan
from hpcncf.state.attempts import last_attempt
from hpcncf.state.evidence import complete

POLL_S: Final = 0.2
# From the run's limit, at which it is to stop with a checkpoint, to SIGKILL.
GRACE_S: Final = 60.0

Child = subprocess.Popen[bytes]
EndReason = Literal["timeout", "cancelled"]


def work(results: str, run_ids: Sequence[str], again: bool, over: Mapping[str, int]) -> None:
    """Be one rank of each run in turn; Slurm is to see a failure as one.

    `over`: run -> the attempt up to which all are known to have ended.
    """
    stopping.hold((*stopping.SIGNALS, signal.SIGCONT))  # submitit's handlers end here
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    planned = {run.id: run for run in read_plan(ResultPaths(Path(results))).runs}
    if planned[run_ids[0]].resources.packed:
        runs = [planned[run_id] for run_id in run_ids]
        code = side_by_side.work(ResultPaths(Path(results)), runs, again, over)
    elif len(run_ids) == 1 and planned[run_ids[0]].resources.launcher == "srun":
        from hpcncf import worker

        code = worker.work(Path(results), run_ids[0], again, over.get(run_ids[0], 0))
    else:
        several = _Several(ResultPaths(Path(results)), again, over)
        code = several.work([planned[run_id] for run_id in run_ids])
    stopping.ignore()
    ending.in_the_end(code)
    if code:
        raise SystemExit(code)


class _Several:
    """The runs of one task, as one of its ranks sees them."""

    def __init__(self, paths: ResultPaths, again: bool, over: Mapping[str, int]) -> None:
        self._paths, self._again, self._over = paths, again, over
        self._rank = launcher.place().rank
        self._child: Child | None = None
        self._told: int | None = None
        self._by_torchrun = False
        self._word = Word(paths, job_id=launcher.slurm_job_id())
        for each in (signal.SIGTERM, signal.SIGUSR2):
            held = signal.getsignal(each)
            signal.signal(each, self._pass_on)
            if isinstance(held, stopping.Held) and held.came:
                self._told = each

    def work(self, runs: Sequence[Run]) -> int:
        """The exit code. A run that fails does not keep the next from being run; a signal does."""
        codes, left = [0], False
        for run in runs:
            if self._word.against(run.id):
                continue
            if self._was_told():
                left |= not self._done(run)
                continue
            codes.append(self._run(run))
            left |= codes[-1] != 0 and self._was_told()
        return self._stopped(runs[0].resources.requeues) if left else max(codes)

    def _told_off(self, run: Run) -> bool:
        return Word(self._paths, 0.0, launcher.slurm_job_id()).against(run.id)

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
            env=os.environ | {requeue.BY_TASK: "1"},
            preexec_fn=torchrun.prepare if self._by_torchrun else end_with_parent,
        )
        deadline = time.monotonic() + run.resources.timeout_min * 60
        code = _wait(self._child, deadline, lambda: self._word.against(run.id))
        reason: EndReason | None = None
        if code is None:
            cancelled = self._word.against(run.id)
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
            return torchrun.command(run, ["hpcncf.worker", *given])
        return [sys.executable, "-P", "-u", "-m", "hpcncf.worker", *given]

    def _leave_end(self, run: Run, reason: EndReason, code: int) -> None:
        """The run's own record says that it was told to stop; here stands why."""
        attempt = claims.of_start(
            self._paths.run(run.id), launcher.slurm_job_id(), requeue.restart()
        )
        if attempt is None:
            return
        others: list[int | None] = [None] * (run.resources.world_size - 1)
        end = End(
            run_id=run.id,
            attempt=attempt.number,
            reason=reason,
            exit_codes=[code, *others],
            ended_at=records.now(),
        )
        records.write_last(attempt.end, end)

    def _pass_on(self, signum: int, _frame: FrameType | None) -> None:
        self._told = self._told or signum
        if self._child is not None and self._child.poll() is None:
            self._send(self._child, signum)

    def _send(self, child: Child, signum: int) -> None:
        if self._by_torchrun:
            torchrun.pass_on(child, signum)
        else:
            child.send_signal(signum)

    def _stopped(self, allowed: int) -> int:
        """The first rank has the task put back, to go on with the runs that are not complete."""
        assert self._told is not None
        return 0 if self._rank != 0 else requeue.stopped_task(self._told, allowed)


def _wait(
    child: Child, deadline: float, cancelled: Callable[[], bool] = lambda: False
) -> int | None:
    """Its exit code, or None where it still runs at the deadline, or when it is cancelled."""
    while (code := child.poll()) is None and time.monotonic() < deadline and not cancelled():
        time.sleep(POLL_S)
    return code
