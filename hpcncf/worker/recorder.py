"""Measure a rank and write its record, however the rank ends."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.spec import Program
from hpcncf.launcher.allocation import allocated_cores
from hpcncf.launcher.environment import Place, launched_by
from hpcncf.launcher.requeue import RequeueDecision, decide_requeue
from hpcncf.launcher.signals import Stopped, StopSignals, graceful
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.code_version import CHANGED, changed
from hpcncf.records.host import describe_host
from hpcncf.records.plan_file import has_snapshot
from hpcncf.records.schema import (
    RankOutcome,
    RankRecord,
)
from hpcncf.records.submissions import read_submissions
from hpcncf.records.user_code import hash_command_code
from hpcncf.worker.attempt import all_left

if TYPE_CHECKING:
    from hpcncf.ncf.trainer import Trainer
from hpcncf.worker.lost_ranks import (
    LOST,
    Peer,
    describe_failed_rank,
    describe_killed_ranks,
    describe_lost_peers,
    gone_before_meeting,
    is_peer_loss,
    silent_elsewhere,
)
from hpcncf.worker.rank_recorder import RankRecorder


def changes(run: Run, attempt: AttemptPaths) -> list[str]:
    """Return warnings about code that was edited since the run was last submitted.

    A command's code includes the checkout that its user was in; our own workload runs none of it.
    """
    results = ResultPaths(attempt.folder.parents[2])
    submission = read_submissions(results).last(run.id)
    if submission is None:
        return []
    live = run.workload != "ncf" and not has_snapshot(results, run)
    found = changed(submission.code, checkouts=live)
    if live and run.code and not found and isinstance(run.workload, Program):
        code = hash_command_code(run.words, Path(run.workload.folder))
        if code.sha256() not in (None, run.code):
            names = ", ".join(sorted(code.digests)[:NAMED_FILES])
            found.append(f"{CHANGED}the program's own code ({names}) is not what it was")
    return found


NAMED_FILES: Final = 5


TRACEBACK_LINES = 12


# Ranks that agreed to stop leave their records within a second of one another.
OTHERS_S = 10.0


# The same of ranks on other nodes that are stopped before they have met: once before a short
# KillWait ends this rank, once more because a file server may show their records late.
ELSEWHERE_S = (1.0, 4.0)


class ProcessRecorder(RankRecorder, AbstractContextManager["ProcessRecorder"]):
    """Measures this process while the block runs, and writes its rank record at the end.

    An error of the block is recorded and not raised: see `exit_code` and `error`. Before `begin`,
    the attempt is the one that `found` returns; without one there is no place for a record, and
    the error is raised.
    """

    def __init__(
        self,
        run: Run,
        place: Place,
        attempt: AttemptPaths | None = None,
        found: Callable[[], AttemptPaths | None] = lambda: None,
    ) -> None:
        super().__init__(run.model_dump(mode="json"), place, attempt)
        self.run = run
        self._found = found
        self.trainer: Trainer | None = None
        self.peers: list[Peer] = []
        """All ranks of the run, once they have met."""
        self.exit_code = 0
        self.error: BaseException | None = None
        self._environment: dict[str, Any] = {}
        quiet = {ProcessRecorder.__enter__.__code__, ProcessRecorder.__exit__.__code__}
        self._signals = StopSignals(quiet, self._leave_at_once, graceful())
        self.stop = self._signals.request

    def __enter__(self) -> ProcessRecorder:
        if self._attempt is not None:
            self.begin(self._attempt)
        self._signals.begin()
        self._environment = describe_host()
        return self

    def begin(self, attempt: AttemptPaths) -> None:
        """Start to measure this process for the given attempt."""
        self._attempt = attempt
        allocated = allocated_cores() or float(self.run.resources.cpus_per_task)
        self.start_monitor(allocated)
        if short := self.monitor.shortage():
            sys.stderr.write(f"hpcncf: WARNING: rank {self.place.rank}: {short}\n")
        if self.place.local_rank == 0:
            self.warnings += changes(self.run, attempt)

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
        """Return the stop signal if it led to the error, or else the error.

        Ranks that a signal stops end together: one that lost a peer then lost it to something
        else, unless the signal cut them off.
        """
        if error and self.stop.came_in in ("deferred", "undisturbed") and is_peer_loss(error):
            return error
        return self._signals.cause(error)

    def _leave(self, error: BaseException | None) -> bool:
        """Write the record of this rank; return False if the error must be raised.

        That is so if there is no attempt to record it in.
        """
        self.error = error
        if error is not None:
            self.exit_code = error.exit_code if isinstance(error, Stopped) else 1
        if self._monitor is None:
            attempt = self._attempt or self._found()
            if attempt is None:
                if isinstance(error, Stopped) and self.place.rank != 0:
                    error.fate = " before rank 0 had begun an attempt; see rank 0's log"
                return isinstance(error, Stopped)
            self.begin(attempt)
        decision = RequeueDecision(None, "")
        if isinstance(error, Stopped):
            if self.place.rank == 0:
                decision = decide_requeue(error.signum, self.run.resources.requeues)
            error.fate = decision.description
            # srun, torchrun and our own queue send SIGTERM to the ranks that a failed one leaves,
            # as Slurm does to those of a cancelled job.
            if not error.fate and error.signum == signal.SIGTERM:
                recorded = self.attempt.recorded_ranks
                error.fate = self._after_another(
                    lambda: (
                        describe_killed_ranks(self.peers, recorded)
                        if self.peers
                        else gone_before_meeting(self.place, recorded())
                    )
                )
        record = self._record()
        self.leave(record)
        if not isinstance(error, Stopped):
            return True

        def leave_again(fate: str) -> None:
            error.fate = fate
            changed = record.model_copy(update={"error": self._error_fields()})
            self.leave(changed)

        before_meeting = self.place.world_size > self.place.local_world_size and not self.peers
        if refusal := self.requeue_last(decision, OTHERS_S):
            leave_again(refusal)
        elif before_meeting and error.signum == signal.SIGTERM and not error.fate:
            # It was stopped as a job's ranks are, and nothing on this node explains it.
            for within_s in ELSEWHERE_S:
                all_left(self.attempt, self.place.world_size, within_s)
                leave_again(
                    self._after_another(
                        lambda: silent_elsewhere(self.place, self.attempt.recorded_ranks())
                    )
                )
        return True

    def _after_another(self, described: Callable[[], str]) -> str:
        """Return ` after another rank ended: ...`, which names the cause; empty if unknown.

        The cause is the first rank that failed, or else the text that `described` returns.
        """
        cause = describe_failed_rank(self.attempt.first("failed")) or described()
        return f" after another rank ended: {cause}" if cause else ""

    def _leave_at_once(self, stopped: Stopped) -> None:
        """Write the record and exit, from a second thread, since the main one may never return."""
        try:
            self._leave(stopped)
            sys.stderr.write(f"hpcncf: {stopped}\n")
            sys.stderr.flush()
        finally:
            os._exit(stopped.exit_code)

    def _record(self) -> RankRecord:
        measured = self.monitor.stop_plain()
        trainer = self.trainer
        # A run resumed behind its last step has no steps of its own, and yet epochs to record.
        training = trainer.record() if trainer and (trainer.clock.steps or trainer.epochs) else None
        return self.build_record(
            measured,
            pid=os.getpid(),
            launched_by=launched_by(),
            outcome=outcome(self.error),
            exit_code=self.exit_code,
            error=self._error_fields(),
            environment=self._environment,
            training=training and training.model_dump(mode="json"),
            warnings=trainer.warnings if trainer else [],
        )

    def _error_fields(self) -> dict[str, str] | None:
        if self.error is None:
            return None
        lines = "".join(traceback.format_exception(self.error)).splitlines()[-TRACEBACK_LINES:]
        return {
            "type": type(self.error).__name__,
            "message": self.explained(),
            "traceback": "" if isinstance(self.error, HpcncfError) else "\n".join(lines),
        }

    def explained(self) -> str:
        """Return the error's message; if another rank's end caused it, that comes first."""
        message = str(self.error)
        if self.error is None or not is_peer_loss(self.error):
            return message
        cause = describe_failed_rank(self.attempt.first("failed")) or describe_failed_rank(
            self.attempt.first("stopped")
        )
        recorded = self.attempt.recorded_ranks() | {self.place.rank}
        if not self.peers:
            cause = cause or gone_before_meeting(self.place, recorded)
            cause = cause or silent_elsewhere(self.place, recorded)
        cause = cause or describe_lost_peers(self.peers, recorded)
        return f"{LOST}: {cause} (this rank's own error: {message.splitlines()[0]})"


def outcome(error: BaseException | None) -> RankOutcome:
    if error is None:
        return "completed"
    return "stopped" if isinstance(error, Stopped | KeyboardInterrupt) else "failed"
