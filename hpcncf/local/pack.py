"""Runs side by side on this machine: each on its own cores, with its own log, limit and end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hpcncf import placement, records
from hpcncf.errors import HpcncfError
from hpcncf.local import mps, processes
from hpcncf.local.processes import POLL_S, Ranks, Reason, Seat, Watch
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.plan import Run
from hpcncf.rank.record import PACKED
from hpcncf.records import End, Packed


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
        with mps.started(resources.mps, self._on.gpus) as served:
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

    def _seat(self, slot: int, run: Run, packed: Packed, served: mps.Served) -> Seat:
        gpus = placement.gpus_of(slot, run.resources, served.gpus)
        told = {**self._on.told, **served.variables}
        if run.resources.packed:
            told[PACKED] = packed.model_dump_json()
        return Seat(placement.cpus_of(slot, run.resources, self._on.cpus), gpus, told)

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
                ended_at=records.now(),
            )
            try:
                records.write_last(member.attempt.end, end)
            except OSError as problem:
                sys.stderr.write(f"run {member.run.id}: {problem}\n")
        return [0] if reason == "cancelled" else left
