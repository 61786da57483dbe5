"""Measure a rank and write its record, however the rank ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.job.spec import Program
from hpcncf.launcher.allocation import allocated_cores
from hpcncf.launcher.environment import Place, launched_by, slurm_job_id
from hpcncf.launcher.requeue import RequeueDecision, decide_requeue, requeue_job
from hpcncf.launcher.signals import Stopped, StopSignals, graceful
from hpcncf.monitor.monitor_thread import Measured, Monitor
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.code_version import CHANGED, changed
from hpcncf.records.host import describe_host
from hpcncf.records.plan_file import has_snapshot
from hpcncf.records.schema import (
    Packed,
    Progress,
    RankOutcome,
    RankRecord,
    utc_now,
    write_record,
    write_record_with_retries,
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


# The runs that share a node or GPU, as JSON, for the ranks of each.
PACKED: Final = "HPCNCF_PACKED"


class RankRecorder:
    """Measures one rank of a run and writes its record: this process, or a command."""

    def __init__(self, run: Run, place: Place, attempt: AttemptPaths | None = None) -> None:
        self.run, self.place, self._attempt = run, place, attempt
        self.warnings: list[str] = []
        self._monitor: Monitor | None = None

    @property
    def attempt(self) -> AttemptPaths:
        assert self._attempt is not None
        return self._attempt

    @property
    def monitor(self) -> Monitor:
        assert self._monitor is not None
        return self._monitor

    def start_monitor(self, allocated: float, pid: int | None = None) -> None:
        """Start to measure this process, or the command `pid`.

        A node's first rank measures the node, too.
        """
        cpus = os.environ.get("HPCNCF_NODE_CPUS")  # of the whole run here, by its launcher
        is_first = self.place.local_rank == 0
        self._monitor = Monitor(
            self.run.id,
            self.attempt.number,
            node_index=self.place.node_index,
            pid=pid,
            allocated=allocated,
            node_file=self.attempt.node(self.place.node_index) if is_first else None,
            node_cpus=[int(cpu) for cpu in cpus.split(",")] if cpus else None,
            siblings=self.place.local_world_size > 1,
        )
        self._monitor.start()

    def write_progress(self, **position: Any) -> None:
        """Write the progress file that `status` shows; `position` has the unmeasured fields."""
        progress = Progress(
            run_id=self.run.id,
            attempt=self.attempt.number,
            updated_at=utc_now(),
            **self.monitor.so_far(),
            **position,
        )
        with contextlib.suppress(OSError):  # without it `status` shows less; the run goes on
            write_record(self.attempt.progress, progress)

    def build_record(self, measured: Measured, **others: Any) -> RankRecord:
        """Build the rank's record; `others` has the fields that the monitor does not measure."""
        figures = {field.name: getattr(measured, field.name) for field in fields(measured)}
        # A command of a packed run may start runs, which inherit the variable of that run.
        packed = Packed.model_validate_json(os.environ[PACKED]) if os.environ.get(PACKED) else None
        packed = packed if packed and self.run.id in packed.runs else None
        missing = [f"mps: {packed.mps_missing}"] if packed and packed.mps_missing else []
        warnings = [*measured.warnings, *missing, *others.pop("warnings"), *self.warnings]
        return RankRecord(
            **figures | {"warnings": warnings},
            run_id=self.run.id,
            attempt=self.attempt.number,
            rank=self.place.rank,
            local_rank=self.place.local_rank,
            world_size=self.place.world_size,
            node=os.uname().nodename,
            node_index=self.place.node_index,
            slurm_job_id=slurm_job_id(),
            run=self.run.model_dump(mode="json"),
            packed=packed,
            **others,
        )

    def leave(self, record: RankRecord) -> None:
        """Write the rank's record; retry for a while if the disk is full or unreachable.

        Raises HpcncfError if it cannot be written.
        """
        path = self.attempt.rank(record.rank)
        try:
            write_record_with_retries(path, record)
        except OSError as problem:
            raise HpcncfError(f"{path}: cannot be written: {problem.strerror}") from None
        message = record.error["message"] if record.error else LOST
        if record.world_size > 1 and record.outcome != "completed" and not message.startswith(LOST):
            # The first to end is linked to, so that no rank has to read hundreds of records.
            with contextlib.suppress(OSError):  # another was first, or there are no links here
                self.attempt.first(record.outcome).symlink_to(path.name)

    def requeue_last(self, decision: RequeueDecision, within_s: float) -> str:
        """Requeue the job if `decision` says so; return why Slurm refused, or an empty text.

        Slurm then kills the rest of the job: the other ranks' records come first.
        """
        if decision.job_id is None:
            return ""
        all_left(self.attempt, self.place.world_size, within_s)
        return requeue_job(decision.job_id) or ""


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
        super().__init__(run, place, attempt)
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
        measured = self.monitor.stop()
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
            training=training,
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
