"""Run a pack: several runs side by side on one node or GPU.

Its runs are children of this process, not steps of srun: it can bind each to whole cores, share a
GPU and MPS among them, and requeue the job once. Each is a process, because a record measures one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.spec import Resources
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.schema import EndReason, Packed, write_record_with_retries
from hpcncf.worker import processes
from hpcncf.worker.attempt import build_end
from hpcncf.worker.mps import run_mps_daemon
from hpcncf.worker.processes import POLL_S, Placement, Ranks, RankWatch
from hpcncf.worker.rank_recorder import PACKED


@dataclass(frozen=True)
class Machine:
    """Cores, GPUs and environment variables that a pack of runs may use."""

    cpus: list[int]
    """Empty: nothing is bound."""
    gpus: list[str]
    """By the names that this job has for them; Slurm may use UUIDs."""
    variables: Mapping[str, str]
    """Further variables of every rank's environment."""


@dataclass(frozen=True)
class LaunchPolicy:
    """Policy by which a local queue or a Slurm task starts and stops the runs of a pack."""

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
    watch: RankWatch


class PackRunner:
    """Runs a pack; `members` are its running runs, which get signals passed on."""

    def __init__(self, paths: ResultPaths, on: Machine, policy: LaunchPolicy) -> None:
        self._paths, self._on, self._policy = paths, on, policy
        self.members: list[Member] = []

    def work(self, runs: Sequence[Run]) -> list[int]:
        """Run the pack to its end; returns the exit codes of all ranks, 1 for a run not started.

        A run that cannot be started, or fails, does not stop the others.
        """
        taken = []
        for run in runs:
            try:
                taken.append((run, self._policy.take(run)))
            except (HpcncfError, OSError) as problem:
                sys.stderr.write(f"run {run.id}: {problem}\n")
        codes = [1] * (len(runs) - len(taken))
        if not taken:
            return codes
        resources = taken[0][0].resources
        with run_mps_daemon(resources.mps, self._on.gpus) as clients:
            packed = Packed(
                runs=[run.id for run, _ in taken],
                runs_per_gpu=min(resources.runs_per_gpu, len(taken)),
                mps=clients.running,
                mps_missing=clients.problem,
            )
            for slot, (run, attempt) in enumerate(taken):
                gpus = slot_gpus(slot, run.resources, clients.gpus)
                variables = {**self._on.variables, **clients.variables}
                if run.resources.packed:
                    variables[PACKED] = packed.model_dump_json()
                placement = Placement(
                    slot_cpus(slot, run.resources, self._on.cpus), gpus, variables
                )
                codes += [] if self._start(run, attempt, placement) else [1]
            return codes + self._watch()

    def _start(self, run: Run, attempt: AttemptPaths, placement: Placement) -> bool:
        if self._policy.interrupted():
            return False
        try:
            ranks = processes.start(self._paths.folder, run, attempt, placement)
        except OSError as problem:
            sys.stderr.write(f"run {run.id}: {problem}\n")
            return False
        stop = partial(self._policy.should_stop, run.id)
        limit_s = run.resources.timeout_min * 60
        watch = RankWatch(ranks, limit_s, stop, grace_s=self._policy.grace_s)
        self.members.append(Member(run, attempt, ranks, watch))
        if signum := self._policy.interrupted():  # it came before these ranks had started
            watch.pass_on(signum)
        return True

    def _watch(self) -> list[int]:
        """Wait until all runs of the pack have ended; return the exit codes of all ranks."""
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
        if not (self._policy.interrupted() and reason == "exited"):
            end = build_end(member.run, member.attempt, reason, codes)
            try:
                write_record_with_retries(member.attempt.end, end)
            except OSError as problem:
                sys.stderr.write(f"run {member.run.id}: {problem}\n")
        return [0] if reason == "cancelled" else codes


def slot_cpus(slot: int, resources: Resources, ordered: Sequence[int]) -> list[int]:
    """Return the CPUs for the run in this slot of the job; an empty list binds nothing.

    `ordered` lists the job's CPUs, those of a core next to one another.
    """
    each = resources.cores
    return list(ordered[slot * each : (slot + 1) * each])


def slot_gpus(slot: int, resources: Resources, visible: Sequence[str]) -> list[str]:
    """Return the GPUs for the run in this slot, under the names that they have in the job."""
    each = resources.gpus_per_node
    first = slot // resources.runs_per_gpu * each
    return list(visible[first : first + each])
