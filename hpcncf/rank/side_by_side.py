"""The task of a Slurm job that works at runs side by side: it starts each on its own cores.

The task has the cores, GPUs and memory of all of them. Its process only places them, waits, passes
signals on and knows each run's limit; when a signal has ended them it has the job put back.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Final

from hpcncf import packs
from hpcncf.local import machine
from hpcncf.local.pack import Machine, Orders, Working
from hpcncf.monitor import cores, topology
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.plan import Run
from hpcncf.rank import launcher, requeue, stopping, taking
from hpcncf.rank.launcher import Place
from hpcncf.rank.word import Word
from hpcncf.spec import Resources
from hpcncf.state.attempts import last_attempt
from hpcncf.state.evidence import complete

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
        self._word = Word(paths, job_id=launcher.slurm_job_id())
        self._told: int | None = None
        orders = Orders(self._take, self._word.against, lambda: self._told, GRACE_S)
        self._working = Working(paths, _machine(resources), orders)
        for each in (signal.SIGTERM, signal.SIGUSR2):
            held = signal.getsignal(each)
            signal.signal(each, self._pass_on)
            if isinstance(held, stopping.Held) and held.came:
                self._told = each

    def work(self, runs: Sequence[Run]) -> int:
        codes = [0]
        for together in packs.cut(runs, self._resources.side_by_side):
            left = [run for run in together if self._wanted(run)]
            if left and self._told is None:
                codes += self._working.work(left)
        if self._told is not None and any(self._wanted(run) for run in runs):
            return requeue.stopped_task(self._told, self._resources.requeues)
        worst = max(codes, key=abs)
        return worst if worst >= 0 else 128 - worst

    def _wanted(self, run: Run) -> bool:
        if self._word.against(run.id):
            return False
        attempt = last_attempt(self._paths.run(run.id))
        if attempt is None or not complete(run, attempt):
            return True
        # What was asked for again is done where this very job did it, in this start or an earlier.
        by = attempt.claim.slurm_job_id if attempt.claim else None
        return self._again and by != launcher.slurm_job_id()

    def _take(self, run: Run) -> AttemptPaths:
        return taking.take(run, self._paths.run(run.id), Place(), self._over.get(run.id, 0))

    def _pass_on(self, signum: int, _frame: FrameType | None) -> None:
        self._told = self._told or signum
        for member in self._working.members:
            member.watch.pass_on(signum)


def _machine(resources: Resources) -> Machine:
    """What Slurm gave the job here."""
    wanted, usable = resources.node_cores, cores.usable_cpus()
    granted = launcher.cpus_of_job() or wanted
    confined = wanted <= len(usable) <= granted
    if not confined:
        sys.stderr.write(
            f"hpcncf: the job was granted {granted:g} CPUs and may use {len(usable)}: its runs "
            "are not bound to cores of their own, for these may be another job's\n"
        )
    cpus = topology.spread(usable, wanted) if confined else []
    return Machine(cpus, machine.gpus(), _as_a_step(resources))


def _as_a_step(resources: Resources) -> dict[str, str]:
    """Each run is told what a step of its own would be: its ranks and cores, not the job's."""
    ranks = str(resources.tasks_per_node)
    names = ("NTASKS", "NPROCS", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "TASKS_PER_NODE")
    told = {f"SLURM_{name}": ranks for name in names}
    told["SLURM_CPUS_PER_TASK"] = str(resources.cpus_per_task)
    by = os.environ.get("HPCNCF_LAUNCHED_BY", "slurm")
    return told | {"HPCNCF_LAUNCHED_BY": by, requeue.BY_TASK: "1"}
