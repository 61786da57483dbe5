"""Write a rank's record, however the rank ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psutil

from hpcncf.errors import HpcncfError
from hpcncf.job.plan import Run
from hpcncf.monitor.sampler import Measured, Monitor
from hpcncf.paths import AttemptPaths, ResultPaths
from hpcncf.records.claims import is_same_process
from hpcncf.records.code_version import changed
from hpcncf.records.host import describe_host
from hpcncf.records.schema import (
    Outcome,
    Packed,
    RankRecord,
    RecordError,
    read_record,
    write_record_with_retries,
)
from hpcncf.records.submissions import read_submissions
from hpcncf.worker.allocation import allocated_cores
from hpcncf.worker.environment import Place, launched_by, slurm_job_id
from hpcncf.worker.signals import Decision, Stopped, StopSignals, decide, graceful, put_back

if TYPE_CHECKING:
    from hpcncf.ncf.trainer import Trainer


def changes(run: Run, attempt: AttemptPaths) -> list[str]:
    """What was edited between the run's last submission and now; nothing for one never submitted.

    The checkout that its user was in is the code of a command; our own workload runs none of it.
    """
    results = ResultPaths(attempt.folder.parents[2])
    submission = read_submissions(results).last(run.id)
    if submission is None:
        return []
    return changed(submission.code, checkouts=run.workload != "ncf")


# What gloo and nccl say when a rank is gone names an address, or nothing. A process that was
# killed
# leaves no record either: but the ranks of its node see that it is not there any more.

LOST: Final = "another rank ended while this one waited for it"
# A process that is killed closes its connections some moments before it is gone.
GONE_WITHIN_S: Final = 2.0


@dataclass(frozen=True)
class Peer:
    """A rank's process, as another one on its node can find it."""

    rank: int
    node: str
    numbers: str
    """Of which space its process's number is: a container may have one of its own."""
    pid: int
    started: float

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.node})"


def oneself(place: Place) -> Peer:
    pid = os.getpid()
    numbers = str(Path("/proc/self/ns/pid").readlink())
    return Peer(place.rank, os.uname().nodename, numbers, pid, psutil.Process(pid).create_time())


def lost(peers: Sequence[Peer], recorded: set[int]) -> str:
    """In words, which of them are gone, or may be; of those that left no record."""
    silent = [each for each in peers if each.rank not in recorded]
    until = time.monotonic() + GONE_WITHIN_S
    while not (gone := [each for each in silent if _here(each) and not _lives(each)]):
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    if gone:
        return _killed(gone)
    elsewhere = [each for each in silent if not _here(each)]
    if not elsewhere:
        return "no rank left a record of failing yet, see the other ranks' logs"
    return f"of {' or '.join(map(str, elsewhere))} nothing was heard"


def end(path: Path) -> str:
    """In words, of a rank whose record tells why it ended; empty where there is no such record."""
    try:
        record = read_record(path, RankRecord)
    except RecordError:
        return ""
    if record.error is None:
        return ""
    return f"rank {record.rank} {record.outcome}: {record.error['type']}: {record.error['message']}"


def killed(peers: Sequence[Peer], recorded: Callable[[], Collection[int]]) -> str:
    """In words, which of them on this node are gone without a record; empty where none is."""
    # In this order: one that ends well leaves its record first.
    gone = [each for each in peers if _here(each) and not _lives(each)]
    left = recorded() if gone else ()
    return _killed([each for each in gone if each.rank not in left])


def gone_before_meeting(place: Place, recorded: Collection[int]) -> str:
    """In words, which ranks of this node are gone without a record; empty where none is.

    Before the ranks have met, they are found among the children of the process that started this
    one, by their rank variable.
    """
    here = set[int]()
    with contextlib.suppress(psutil.Error):
        for sibling in psutil.Process(os.getppid()).children():
            with contextlib.suppress(psutil.Error, ValueError):  # a zombie has no variables
                env = sibling.environ()
                here.add(int(env.get("RANK", env.get("SLURM_PROCID", ""))))
    first = place.rank - place.local_rank
    ranks = range(first, first + place.local_world_size)
    gone = [str(rank) for rank in ranks if rank not in here and rank not in recorded]
    if place.rank not in here or not gone:  # started in a way that hides the others
        return ""
    return (
        f"rank{'s' if len(gone) > 1 else ''} {', '.join(gone)} of {os.uname().nodename} ended "
        "before the ranks had met, without a record: killed, or failed at its start (see its log)"
    )


def _killed(gone: Sequence[Peer]) -> str:
    return "; ".join(f"{each} is gone and left no record: it was killed" for each in gone)


def _here(peer: Peer) -> bool:
    mine = os.uname().nodename, str(Path("/proc/self/ns/pid").readlink())
    return (peer.node, peer.numbers) == mine


def _lives(peer: Peer) -> bool:
    return is_same_process(peer.pid, peer.started)


def lost_peer(error: BaseException) -> bool:
    """True for what gloo, nccl and our own transport raise when another rank has gone or is
    silent."""
    said = r"closed by peer|reset by peer|Broken pipe|Socket closed|recvBytes|NCCL|[Tt]imed out"
    said += r"|^rank \d+ ended while"
    return isinstance(error, RuntimeError) and re.search(said, str(error)) is not None


# By it who starts runs side by side tells their ranks which these are.
PACKED: Final = "HPCNCF_PACKED"


def build_record(
    run: Run, place: Place, attempt: AttemptPaths, measured: Measured, **told: Any
) -> RankRecord:
    """`told`: the record's other fields; its warnings stand behind the measured ones."""
    figures = {field.name: getattr(measured, field.name) for field in fields(measured)}
    packed = _packed(run.id)
    missing = [f"mps: {packed.mps_missing}"] if packed and packed.mps_missing else []
    figures["warnings"] = [*measured.warnings, *missing, *told.pop("warnings")]
    return RankRecord(
        run_id=run.id,
        attempt=attempt.number,
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        node=os.uname().nodename,
        node_index=place.node_index,
        slurm_job_id=slurm_job_id(),
        run=run.model_dump(mode="json"),
        packed=packed,
        **figures,
        **told,
    )


def _packed(run_id: str) -> Packed | None:
    """Nothing where another's word was inherited: a command of a packed run may start runs."""
    told = os.environ.get(PACKED)
    packed = Packed.model_validate_json(told) if told else None
    return packed if packed and run_id in packed.runs else None


# Its threads (gloo's, say) may still hold a tensor when Python ends. Up to Python 3.13 a thread
# that
# then asks for the interpreter is made to leave, in the midst of C++ code that allows no such
# thing:
# "terminate called without an active exception", SIGABRT, and a run that is complete counts as
# failed
# (2 of 100 ends of two ranks with DDP here). Visiting every object of torch's would also take
# most of
# a second of CPU time, which Slurm counts and no record can tell.


def at_once(code: int) -> NoReturn:
    """End this process with that exit code, after what was registered for its end."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def in_the_end(code: int) -> None:
    """End it so when its main program is done; 1 where that ends in an error of its own."""

    def end() -> NoReturn:
        atexit.unregister(end)  # what was registered before is left to run
        at_once(1 if code == 0 and hasattr(sys, "last_value") else code)

    atexit.register(end)


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
        self._signals = StopSignals(quiet, self._leave_at_once, graceful())
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
        self._environment = describe_host()
        return self

    def begin(self, attempt: AttemptPaths) -> None:
        """The attempt is known now."""
        self._attempt = attempt
        self._monitor = Monitor(
            self.run.id,
            attempt.number,
            node_index=self.place.node_index,
            allocated=allocated_cores() or float(self.run.resources.cpus_per_task),
            node_file=attempt.node(self.place.node_index) if self.place.local_rank == 0 else None,
            node_cpus=node_cpus(os.environ.get("HPCNCF_NODE_CPUS")),
        )
        self._monitor.start()
        if short := self._monitor.shortage():
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
        """A signal leaves the ranks together: one that lost another then lost it to something
        else, unless the signal cut them off."""
        if error and self.stop.came_in in ("deferred", "undisturbed") and lost_peer(error):
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

    def _decision(self) -> Decision:
        decision = Decision(None, "")
        if not isinstance(self.error, Stopped):
            return decision
        if self.place.rank == 0:
            decision = decide(self.error.signum, self.run.resources.requeues)
        self.error.fate = decision.told or self._after_another()
        return decision

    def _after_another(self) -> str:
        """srun, torchrun and our own queue end by SIGTERM the ranks that a failed one leaves, as
        Slurm does those of a job that is cancelled."""
        assert isinstance(self.error, Stopped)
        if self.error.signum != signal.SIGTERM:
            return ""
        told = end(self.attempt.first("failed"))
        if self.peers:
            told = told or killed(self.peers, self.attempt.recorded_ranks)
        else:
            told = told or gone_before_meeting(self.place, self.attempt.recorded_ranks())
        return f" after another rank ended: {told}" if told else ""

    def _tell_others(self, record: RankRecord) -> None:
        """Where this rank ended first. Of hundreds none has to read the records of all."""
        if record.outcome == "completed" or record.error is None or self.place.world_size == 1:
            return
        if not record.error["message"].startswith(LOST):
            with contextlib.suppress(OSError):  # another was first, or the file system has no links
                self.attempt.first(record.outcome).symlink_to(self._own().name)

    def _put_back(self, job_id: str, record: RankRecord) -> None:
        """Slurm kills what is left of the job then: the other ranks come first."""
        assert isinstance(self.error, Stopped)
        until = time.monotonic() + OTHERS_S
        while len(self.attempt.rank_records()) < self.place.world_size and time.monotonic() < until:
            time.sleep(0.05)
        refused = put_back(job_id)
        if refused is not None:
            self.error.fate = f"; not put back into the queue: {refused}"
            self._write(record.model_copy(update={"error": self._told_error()}))

    def _own(self) -> Path:
        return self.attempt.rank(self.place.rank)

    def _write(self, record: RankRecord) -> None:
        path = self._own()
        try:
            write_record_with_retries(path, record)
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
        return build_record(
            self.run,
            self.place,
            self.attempt,
            measured,
            pid=os.getpid(),
            launched_by=launched_by(),
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
        if self.error is None or not lost_peer(self.error):
            return message
        told = end(self.attempt.first("failed")) or end(self.attempt.first("stopped"))
        told = told or lost(self.peers, self.attempt.recorded_ranks() | {self.place.rank})
        return f"{LOST}: {told} (this one was told: {message.splitlines()[0]})"


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
