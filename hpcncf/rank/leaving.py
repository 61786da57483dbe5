"""A rank's record is left however the rank ends: done, failed, or stopped by a signal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hpcncf import records
from hpcncf.environment import describe
from hpcncf.errors import HpcncfError
from hpcncf.monitor import Monitor
from hpcncf.paths import AttemptPaths
from hpcncf.plan import Run
from hpcncf.rank import code, launcher, peers, requeue
from hpcncf.rank.launcher import Place
from hpcncf.rank.peers import Peer
from hpcncf.rank.record import of_rank
from hpcncf.rank.stopping import Stopped, StopSignals
from hpcncf.records import Outcome, RankRecord

if TYPE_CHECKING:
    from hpcncf.ncf.train import Trainer

TRACEBACK_LINES = 12
# Ranks that agreed to stop leave their records within a second of one another.
OTHERS_S = 10.0


class Recorded(AbstractContextManager["Recorded"]):
    """Measures this process while the block runs, and writes its rank record at the end.

    What the block raises is written down and goes no further: see `exit_code` and `error`. Before
    `begin` there is an attempt only if `found` knows it; else there is no place for a record, and
    the error goes on.
    """

    def __init__(
        self,
        run: Run,
        place: Place,
        attempt: AttemptPaths | None = None,
        found: Callable[[], AttemptPaths | None] = lambda: None,
    ) -> None:
        self.run, self.place, self._attempt, self._found = run, place, attempt, found
        self.trainer: Trainer | None = None
        self.warnings: list[str] = []
        self.peers: list[Peer] = []
        """All of the run's ranks, as soon as they have met."""
        self.exit_code = 0
        self.error: BaseException | None = None
        self._monitor: Monitor | None = None
        self._environment: dict[str, Any] = {}
        quiet = {Recorded.__enter__.__code__, Recorded.__exit__.__code__}
        self._signals = StopSignals(quiet, self._leave_at_once, requeue.graceful())
        self.stop = self._signals.request

    @property
    def attempt(self) -> AttemptPaths:
        assert self._attempt is not None
        return self._attempt

    @property
    def monitor(self) -> Monitor:
        assert self._monitor is not None
        return self._monitor

    def __enter__(self) -> Recorded:
        if self._attempt is not None:
            self.begin(self._attempt)
        self._signals.begin()
        self._environment = describe()
        return self

    def begin(self, attempt: AttemptPaths) -> None:
        """The attempt is known now."""
        self._attempt = attempt
        self._monitor = Monitor(
            self.run.id,
            attempt.number,
            node_index=self.place.node_index,
            allocated=launcher.granted_cores() or float(self.run.resources.cpus_per_task),
            node_file=attempt.node(self.place.node_index) if self.place.local_rank == 0 else None,
            node_cpus=node_cpus(os.environ.get("HPCNCF_NODE_CPUS")),
        )
        self._monitor.start()
        if short := self._monitor.shortage():
            sys.stderr.write(f"hpcncf: WARNING: rank {self.place.rank}: {short}\n")
        if self.place.local_rank == 0:
            self.warnings += code.changes(self.run, attempt)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._signals.end()
        try:
            return self._leave(self._cause(error))
        finally:
            self._signals.restore()

    def _cause(self, error: BaseException | None) -> BaseException | None:
        """A signal leaves the ranks together: one that lost another then lost it to something
        else, unless the signal cut them off."""
        if error and self.stop.came_in in ("deferred", "undisturbed") and peers.lost_peer(error):
            return error
        return self._signals.cause(error)

    def _leave(self, error: BaseException | None) -> bool:
        """False where there is nowhere to write it down."""
        self.error = error
        if error is not None:
            self.exit_code = error.exit_code if isinstance(error, Stopped) else 1
        if self._monitor is None:
            attempt = self._attempt or self._found()
            if attempt is None:
                return isinstance(error, Stopped)
            self.begin(attempt)
        decision = self._decision()
        record = self._record()
        self._write(record)
        self._tell_others(record)
        if decision.job_id is not None:
            self._put_back(decision.job_id, record)
        return True

    def _decision(self) -> requeue.Decision:
        decision = requeue.Decision(None, "")
        if not isinstance(self.error, Stopped):
            return decision
        if self.place.rank == 0:
            decision = requeue.decide(self.error.signum, self.run.resources.requeues)
        self.error.fate = decision.told or self._after_another()
        return decision

    def _after_another(self) -> str:
        """srun, torchrun and our own queue end by SIGTERM the ranks that a failed one leaves, as
        Slurm does those of a job that is cancelled."""
        assert isinstance(self.error, Stopped)
        if self.error.signum != signal.SIGTERM:
            return ""
        told = peers.end(self.attempt.first("failed"))
        told = told or peers.killed(self.peers, self.attempt.recorded)
        return f" after another rank ended: {told}" if told else ""

    def _tell_others(self, record: RankRecord) -> None:
        """Where this rank ended first. Of hundreds none has to read the records of all."""
        if record.outcome == "completed" or record.error is None or self.place.world_size == 1:
            return
        if not record.error["message"].startswith(peers.LOST):
            with contextlib.suppress(OSError):  # another was first, or the file system has no links
                self.attempt.first(record.outcome).symlink_to(self._own().name)

    def _put_back(self, job_id: str, record: RankRecord) -> None:
        """Slurm kills what is left of the job then: the other ranks come first."""
        assert isinstance(self.error, Stopped)
        until = time.monotonic() + OTHERS_S
        while len(self.attempt.ranks()) < self.place.world_size and time.monotonic() < until:
            time.sleep(0.05)
        refused = requeue.put_back(job_id)
        if refused is not None:
            self.error.fate = f"; not put back into the queue: {refused}"
            self._write(record.model_copy(update={"error": self._told_error()}))

    def _own(self) -> Path:
        return self.attempt.rank(self.place.rank)

    def _write(self, record: RankRecord) -> None:
        path = self._own()
        try:
            records.write_last(path, record)
        except OSError as problem:
            raise HpcncfError(f"{path}: cannot be written: {problem.strerror}") from self.error

    def _leave_at_once(self, stopped: Stopped) -> None:
        """From another thread than the main one, which may never wake."""
        try:
            self._leave(stopped)
            sys.stderr.write(f"hpcncf: {stopped}\n")
            sys.stderr.flush()
        finally:
            os._exit(stopped.exit_code)

    def _record(self) -> RankRecord:
        measured = self.monitor.stop()
        trainer = self.trainer
        # One resumed behind its last step has no steps of its own, and yet epochs to tell of.
        training = trainer.record() if trainer and (trainer.clock.steps or trainer.epochs) else None
        told = trainer.warnings if trainer else []
        return of_rank(
            self.run,
            self.place,
            self.attempt,
            measured,
            pid=os.getpid(),
            launched_by=launcher.launched_by(),
            outcome=outcome(self.error),
            exit_code=self.exit_code,
            error=self._told_error(),
            environment=self._environment,
            training=training,
            warnings=[*told, *self.warnings],
        )

    def _told_error(self) -> dict[str, str] | None:
        if self.error is None:
            return None
        return {
            "type": type(self.error).__name__,
            "message": self.explained(),
            "traceback": "" if isinstance(self.error, HpcncfError) else _end_of(self.error),
        }

    def explained(self) -> str:
        """The error's message; where another rank's end was the cause, that is said first."""
        message = str(self.error)
        if self.error is None or not peers.lost_peer(self.error):
            return message
        told = peers.end(self.attempt.first("failed")) or peers.end(self.attempt.first("stopped"))
        told = told or peers.lost(self.peers, self.attempt.recorded() | {self.place.rank})
        return f"{peers.LOST}: {told} (this one was told: {message.splitlines()[0]})"


def _end_of(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(lines[-TRACEBACK_LINES:])


def outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return "completed"
    return "stopped" if isinstance(error, Stopped | KeyboardInterrupt) else "failed"


def node_cpus(listed: str | None) -> list[int] | None:
    """The CPUs of the whole run on this node, as its launcher lists them: `0,1`."""
    return [int(cpu) for cpu in listed.split(",")] if listed else None
