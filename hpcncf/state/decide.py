"""Decide the state of a run from its attempts, its submission and Slurm."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Final

from hpcncf.errors import describe_exit, printable
from hpcncf.job.plan import Run
from hpcncf.paths import AttemptPaths, ResultPaths, RunPaths
from hpcncf.records.claims import is_alive, is_same_process, server_time
from hpcncf.records.code_version import CHANGED, ELSEWHERE
from hpcncf.records.schema import (
    Claim,
    End,
    Progress,
    R,
    RankEnd,
    RankRecord,
    RecordError,
    read_record,
)
from hpcncf.records.submissions import State, Submission, SubmittedJob
from hpcncf.slurm.states import NOT_OVER, JobState

# A record that a node wrote reaches other machines within NFS's time for attributes of folders.
ARRIVING_S = 60.0
NAMED_RANKS: Final = 8


@dataclass(frozen=True)
class Attempt:
    """Everything that the run's last attempt has left so far."""

    number: int
    claimed: Claim | Callable[[], Claim | None] | None
    """Its claim, or a function that reads it: of thousands of complete runs nobody asks for it."""
    ranks: Sequence[RankEnd]
    """Whole records (`whole_records`) if the reader asked for them."""
    progress: Progress | None
    """Of a complete run read only with whole records, as `end`."""
    end: End | None
    alive: bool
    """Whether the process that claimed it lives; elsewhere, whether it still writes."""
    problems: list[str] = field(default_factory=list)

    @cached_property
    def completed(self) -> bool:
        return all_completed(self.ranks)

    @cached_property
    def failed(self) -> RankEnd | None:
        """End of the first rank that failed; None if no rank has failed."""
        return next((record for record in self.ranks if record.outcome == "failed"), None)

    @property
    def message(self) -> str:
        """Error message of the first rank that recorded an error; empty if there is none."""
        return next((record.error["message"] for record in self.ranks if record.error), "")

    @cached_property
    def claim(self) -> Claim | None:
        return self.claimed() if callable(self.claimed) else self.claimed


@dataclass(frozen=True)
class Turn:
    """A run's position among runs that are processed one after another."""

    ahead: str = ""
    """What a run in a local queue waits for."""
    before: int = 0
    """Runs of its Slurm task, or packs of them, that come before it and are not done."""
    passed: bool = False
    """Whether its Slurm task has gone on to a later run."""


@dataclass(frozen=True)
class Sent:
    """The run's last submission and its current state in the queue."""

    submission: Submission
    job: SubmittedJob | None
    started: bool
    """Whether the last attempt is this submission's."""
    alive: bool | None
    """Whether the local queue lives (before there is one: the submitter); None: cannot be seen."""
    turn: Turn = Turn()
    cancelled_by: str | None = None
    slurm: JobState | None = None
    """None if Slurm was not asked or does not know the job."""


def has_all_ranks(ranks: Sequence[RankEnd]) -> bool:
    """Return whether the records include one of every rank of the run."""
    if not ranks:
        return False
    world_size, found = ranks[0].world_size, {record.rank for record in ranks}
    return len(found) == world_size == 1 + max(found) and min(found) == 0


def all_completed(ranks: Sequence[RankEnd]) -> bool:
    """Whether every rank left a record with the outcome `completed`."""
    return has_all_ranks(ranks) and all(record.outcome == "completed" for record in ranks)


def is_complete(run: Run, attempt: Attempt) -> bool:
    return len(attempt.ranks) == run.resources.world_size and attempt.completed


def missing_ranks(run: Run, attempt: Attempt) -> str:
    """Name the first ranks that left no record, such as `ranks 1, 3, ...`."""
    found = {record.rank for record in attempt.ranks}
    without = (str(rank) for rank in range(run.resources.world_size) if rank not in found)
    first = [*islice(without, NAMED_RANKS + 1)]
    more = ", ..." if len(first) > NAMED_RANKS else ""
    return f"rank{'s' if len(first) > 1 else ''} {', '.join(first[:NAMED_RANKS])}{more}"


# Between making an attempt's folder and writing its claim lies an instant; on NFS, some seconds.
CLAIMING_S: Final = 30.0


def last_attempt(run: RunPaths, kind: type[RankEnd] = RankEnd) -> Attempt | None:
    attempts = run.attempts()
    return read_attempts(attempts[-1], kind) if attempts else None


def find_read_problem(run: RunPaths) -> str | None:
    """Describe why the run's folder cannot be read; None if it is readable or missing."""
    try:
        os.scandir(run.folder).close()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{run.folder}: cannot be read: {error.strerror}"
    return None


def read_attempts(files: AttemptPaths, kind: type[RankEnd] = RankEnd) -> Attempt:
    """Read the files of one attempt of a run.

    `kind` RankRecord reads whole records, several times as slow.
    """
    problems, there = list[str](), set[str]()
    # Most of thousands of runs are complete and have one rank: their folder is not listed.
    first = _read_record(files.rank(0), kind, []) if kind is RankEnd else None
    if first and first.world_size == 1 and all_completed([first]):
        ranks = [first]
    else:
        there = files.file_names()
        found = [_read_record(path, kind, problems) for path in files.rank_records(there)]
        ranks = [record for record in found if record]
    whole = all_completed(ranks)
    if whole and kind is RankEnd:
        there.clear()
    claim = None if whole else _read_record(files.claim, Claim, problems)
    if whole:
        alive = False
    elif claim:
        alive = is_alive(claim, files)
    else:
        age_s = server_time(files.folder.parents[1]) - files.folder.stat().st_mtime
        alive = age_s < CLAIMING_S
    return Attempt(
        number=files.number,
        claimed=partial(read_claim, files) if whole else claim,
        ranks=ranks,
        # Of thousands of runs most lack these, and to open what is not there takes its time.
        progress=_read_record(files.progress, Progress, problems)
        if "progress.json" in there
        else None,
        end=_read_record(files.end, End, problems) if "end.json" in there else None,
        alive=alive,
        problems=problems,
    )


def read_claim(files: AttemptPaths) -> Claim | None:
    return _read_record(files.claim, Claim, [])


def whole_records(ranks: Sequence[RankEnd]) -> list[RankRecord]:
    return [record for record in ranks if isinstance(record, RankRecord)]


def _read_record(path: Path, kind: type[R], problems: list[str]) -> R | None:
    try:
        return read_record(path, kind)
    except RecordError as error:
        with contextlib.suppress(PermissionError):  # a folder that we may not look into
            if not path.exists():
                return None
        problems.append(str(error))
        return None


LONGEST_TAIL: Final = 64 * 1024
# `srun: error: node1: task 1: Killed`. What ended a step comes first; then srun ends the others.
OF_A_TASK: Final = re.compile(r"^srun: error: ([^\s:]+): tasks? ([\d,-]+): (.+?)\s*$", re.MULTILINE)
ENDS_OTHERS: Final = re.compile(r"^srun: .*\bTerminating StepId=.*", re.MULTILINE)
STARVED: Final = "Out Of Memory"


def slurm_logs(paths: ResultPaths, job_id: str, rank: int) -> list[Path]:
    """Find submitit's log files of a rank, the error log last.

    A requeued job appends to the same files.
    """
    found = paths.folder.glob(f"slurm-*/{job_id}_{rank}_log.*")
    return sorted(found, key=lambda file: (file.suffix == ".err", file))


def script_log(paths: ResultPaths, user: str, job_id: str) -> Path:
    """Return the path of the log with errors of the batch script, of srun and of rank 0."""
    return paths.submitit(user) / f"{job_id}_0_log.err"


def srun_message(path: Path) -> str:
    """Return srun's message on how the job's last step ended; empty if there is none.

    For example `task 1 on node1: Killed`.

    Raises OSError.
    """
    text = _read_end(path)
    before = ENDS_OTHERS.split(text)[:-1]
    found = OF_A_TASK.findall(before[-1] if before else text)
    return "task {1} on {0}: {2}".format(*found[-1]) if found else ""


def attempt_logs(
    paths: ResultPaths, attempt: AttemptPaths, job_id: str | None, rank: int
) -> list[Path]:
    if attempt.log(rank).exists():
        return [attempt.log(rank)]
    return slurm_logs(paths, job_id, rank) if job_id else []


def read_last_lines(path: Path, lines: int) -> list[str]:
    """Return the last `lines` lines of the file that are not empty."""
    return [line.rstrip() for line in _read_end(path).splitlines() if line.strip()][-lines:]


# `ValueError: no such column`: the end of a traceback. That of torchrun itself names no cause.
EXCEPTION: Final = re.compile(
    r"(?!.*ChildFailedError)[\w.]*(Error|Exception|Interrupt|Iteration)\b.*"
)
HOST_MEMORY: Final = re.compile(
    r"MemoryError\b|std::bad_alloc|DefaultCPUAllocator: (can't|not enough)|\[Errno 12\]"
)
LOOKED_AT: Final = 40


def last_exception(files: Sequence[Path]) -> str:
    """Find the exception that ended a command, from the last log file back; else empty."""
    for path in reversed(files):
        with contextlib.suppress(OSError):
            for line in reversed(read_last_lines(path, LOOKED_AT)):
                if EXCEPTION.fullmatch(line):
                    return printable(line[:200])
    return ""


def explain_failure(verdict: StateAndReason, exception: str) -> StateAndReason:
    """Add a failed command's exception to its verdict; a MemoryError becomes out_of_memory."""
    state, reason = verdict
    if state != "failed":
        return verdict
    if exception and exception not in reason:
        reason = f"{reason}: {exception}"
    out_of_memory = HOST_MEMORY.search(reason) and "CUDA" not in reason
    return "out_of_memory" if out_of_memory else state, reason


def _read_end(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(log.tell() - LONGEST_TAIL, 0))
        return log.read(LONGEST_TAIL).decode(errors="replace")


StateAndReason = tuple[State, str]

ARRIVING: Final = "its record may be on its way"


def judge_unstarted_job(sent: Sent, job: SubmittedJob) -> StateAndReason:
    """Judge the state of a run of which its Slurm job has not started an attempt."""
    state = sent.slurm
    if state is None:
        return "unknown", f"Slurm job {job.id} is unknown to squeue and sacct"
    if state.state == "running" and sent.turn.before:
        where = f" on {state.node}" if state.node else ""
        return "pending", f"behind {sent.turn.before} in its task (Slurm job {job.id}{where})"
    lately = state.ended_ago_s is not None and state.ended_ago_s < ARRIVING_S
    if state.state == "completed" and lately:
        return "running", f"{state.reason}: {ARRIVING}"
    if state.state in (*NOT_OVER, "unknown", "cancelled"):
        return state.state, state.reason
    if sent.turn.before:
        return "lost", f"its task ended before its turn: {state.reason}"
    if state.state == "completed":
        return "failed", f"Slurm job {job.id} is {state.word} with exit code 0, but left no record"
    return state.state, state.reason


def judge_started_job(
    attempt: Attempt, state: JobState | None, whole: bool, passed: bool, alone: bool
) -> StateAndReason | None:
    """Judge the state of a run that its Slurm job has started; None if its records decide.

    `passed`: the job's task has gone on to a later run, so that the job's end is not this run's.
    `alone`: the job has no other run.
    """
    if passed:
        starved = state is not None and state.state == "out_of_memory" and not whole
        return (state.state, state.reason) if state and starved else None
    if alone and whole and _is_sigkilled(attempt) and state and _has_job(state):
        return _describe_ending(attempt)
    if state is None or (state.remembered and attempt.alive):
        return ("running", "") if attempt.alive and not whole else None
    if state.state == "pending":
        return "pending", describe_requeue(attempt, state)
    if state.state in ("running", "unknown"):
        return _judge_stopped(attempt, state) if whole else _judge_working(attempt, state)
    if state.state == "completed":
        return None if whole else _judge_arriving(attempt, state)
    return None if state.state in ("failed", "lost") else (state.state, state.reason)


def _judge_stopped(attempt: Attempt, state: JobState) -> StateAndReason | None:
    """Judge a run whose ranks have stopped while Slurm still lists the job as running.

    The job may be requeued.
    """
    if state.state != "running" or attempt.failed:
        return None
    restart = attempt.claim.slurm_restart if attempt.claim else None
    if state.restarts > (restart or 0):
        return "running", f"starting again: {describe_requeue(attempt, state)}"
    return _describe_ending(attempt)


def _describe_ending(attempt: Attempt) -> StateAndReason:
    return "running", f"ending: {attempt.message}" if attempt.message else "ending"


def _has_job(state: JobState) -> bool:
    """Return whether Slurm still had the job when it was asked, perhaps some seconds ago."""
    return state.state == "running" or (state.remembered and state.state == "pending")


def _judge_working(attempt: Attempt, state: JobState) -> StateAndReason | None:
    if attempt.alive:
        return "running", ""
    if state.state == "running":
        return "running", "but its first rank sends no heartbeat"
    # Slurm did not answer, or with a word that we do not know: whether the job lives is unknown.
    return None if attempt.failed else (state.state, state.reason)


def _judge_arriving(attempt: Attempt, state: JobState) -> StateAndReason | None:
    """Judge a run whose last record may not be visible on this machine yet."""
    if attempt.failed:
        return None
    waits = attempt.alive if state.ended_ago_s is None else state.ended_ago_s < ARRIVING_S
    return ("running", f"{state.reason}: {ARRIVING}") if waits else None


def _is_sigkilled(attempt: Attempt) -> bool:
    """Return whether SIGKILL ended a rank's command.

    The end of the Slurm job then shows whether memory was the reason.
    """
    return any(record.exit_code == -signal.SIGKILL for record in attempt.ranks)


def with_srun_message(state: JobState, attempt: Attempt | None, log: Path) -> JobState:
    """Add srun's message about a failed rank to the job's state, if no record explains it.

    The log of a requeued job has the messages of earlier starts, too.
    """
    is_explained = attempt is not None and attempt.failed and not _is_sigkilled(attempt)
    if state.state != "failed" or state.restarts or is_explained:
        return state
    try:
        message = srun_message(log)
    except OSError:  # somebody else's, most likely
        return state
    if not message:
        return state
    word: State = "out_of_memory" if message.endswith(STARVED) else state.state
    return replace(state, state=word, reason=f"{state.reason}; srun: {message}")


def describe_requeue(attempt: Attempt, state: JobState) -> str:
    """Describe why the job was requeued and what the run had reached.

    For example `requeued 2 times: stopped by ...; it had reached epoch 3/10, step 120`.
    """
    times = f" {state.restarts} times" if state.restarts > 1 else ""
    why = f": {attempt.message}" if attempt.message else ""
    now, reached = attempt.progress, ""
    if now and now.epochs and now.phase != "startup":
        epoch = min(now.epoch + 1, now.epochs)
        reached = f"; it had reached epoch {epoch}/{now.epochs}, step {now.step}"
    return f"requeued{times}{why}{reached}"


# What a launcher sends to the other ranks when one has failed: an effect, never the cause.
SENT_BY_US = {signal.SIGTERM, signal.SIGINT}
NOT_SENT: Final = "not submitted"


def decide(
    run: Run,
    attempt: Attempt | None,
    sent: Sent | None,
    by_hand: JobState | None = None,
    refused: str = "",
) -> StateAndReason:
    """Decide the run's state, and the text of its reason and remedy, which may be empty.

    `by_hand`: of the Slurm job that took the last attempt, where no submission did. `refused`: why
    the last submission left it out.
    """
    state, reason = _judge(run, attempt, sent, by_hand)
    if state == "planned" and refused:
        reason = f"{NOT_SENT}: {refused}"
    return state, reason + _remedy(run, state)


def _judge(
    run: Run, attempt: Attempt | None, sent: Sent | None, by_hand: JobState | None
) -> StateAndReason:
    waiting = sent is not None and not sent.started
    if attempt and is_complete(run, attempt):
        again = waiting and sent is not None and sent.submission.again
        verdict = _judge_unstarted(run, sent) if again and sent else None
        return verdict if verdict and verdict[0] == "pending" else ("completed", "")
    # Its launcher or a later submission may have recorded that it has ended.
    known = sent.submission.over.get(run.id, 0) if sent else 0
    at_work = attempt and attempt.alive and not attempt.end and attempt.number > known
    if sent and waiting and not at_work:  # somebody else may be at it: then ours passes it over
        return _judge_unstarted(run, sent)
    if attempt is None:
        return "planned", NOT_SENT
    verdict = _judge_attempt(run, attempt, sent, by_hand)
    if sent and sent.cancelled_by and verdict[0] in ("stopped", "lost", "cancelled"):
        return "cancelled", f"by {sent.cancelled_by}, while it ran"
    if sent and sent.started and verdict[0] == "cancelled" and sent.submission.cluster == "local":
        return "stopped", "its local queue was ended while it ran"  # and nobody cancelled the run
    return verdict


def _remedy(run: Run, state: State) -> str:
    """Return a hint to the option of `hpcncf retry` that increases the exhausted resource.

    It is empty unless the run reached its time limit or ran out of memory.
    """
    key = {"timeout": "resources.timeout_min", "out_of_memory": "resources.mem_gb"}.get(state)
    if key is None or run.training is None:
        return ""
    then = "resumes at its last checkpoint" if run.training.checkpoint_every else "begins anew"
    return f"; retry -s {key}=N {then}"


def find_stale_reason(run: Run, ranks: Sequence[RankEnd], commit: str | None) -> str | None:
    """Return why a finished run is out of date, such as other code or data, or None."""
    for warning in (warning for record in ranks for warning in record.warnings):
        if warning.startswith(ELSEWHERE):
            return f"ran other code than was submitted: {warning}"
        if warning.startswith(CHANGED):
            return f"ran other code than was submitted: {warning.removeprefix(CHANGED)}"
    if run.training is None:  # our commit is not that of a command's own code
        return None
    for record in ranks:
        of_then = record.run.get("data_key")
        if of_then != run.data_key:
            return f"made from other data ({str(of_then)[:12]}, now {str(run.data_key)[:12]})"
        made_by = str(record.environment.get("commit") or "")
        if commit and made_by and made_by != commit:
            return f"made by other code ({made_by[:7]}, now {commit[:7]})"
    return None


def _judge_unstarted(run: Run, sent: Sent) -> StateAndReason:
    if sent.cancelled_by:
        return "cancelled", f"by {sent.cancelled_by}, before it started"
    if sent.submission.error and sent.job is None:
        return "failed", f"{NOT_SENT}: {sent.submission.error.splitlines()[0]}"
    if sent.job is None:
        return _judge_unsent(run, sent)
    if sent.submission.cluster == "slurm":
        return judge_unstarted_job(sent, sent.job)
    if sent.alive is None:
        host = sent.submission.host
        return "unknown", f"its local queue is process {sent.job.id} on {host}: run `status` there"
    if sent.alive:
        return "pending", sent.turn.ahead
    return "lost", f"its local queue (process {sent.job.id}) has exited; it never started"


def _judge_unsent(run: Run, sent: Sent) -> StateAndReason:
    if sent.alive is None:
        return "unknown", f"being submitted on {sent.submission.host}, or interrupted there"
    if sent.alive:
        return "pending", "being submitted"
    if any(run.id in task for task in sent.submission.sending):
        return (
            "unknown",
            "its submission was interrupted while being sent: `submit` finds out",
        )
    return "lost", "its submission was interrupted before it was sent"


def _judge_attempt(
    run: Run, attempt: Attempt, sent: Sent | None, by_hand: JobState | None
) -> StateAndReason:
    state = sent.slurm if sent and sent.started else by_hand
    if attempt.end:
        # Runs side by side share a job's memory; Slurm reports the job, not which run was killed.
        starved = state is not None and state.state == "out_of_memory"
        if state and starved and _find_killed_rank(attempt.end.exit_codes):
            return state.state, state.reason
        return _judge_end(run, attempt, attempt.end)
    whole = len(attempt.ranks) == run.resources.world_size
    passed = sent is not None and sent.started and sent.turn.passed
    alone = sent is None or sent.job is None or len(sent.job.runs) == 1
    verdict = judge_started_job(attempt, state, whole, passed, alone)
    if verdict:
        return verdict
    if whole or attempt.failed:
        return _from_records(attempt)
    if state and state.state == "failed":
        gone = f"; no record of {missing_ranks(run, attempt)}" if attempt.ranks else ""
        return "failed", f"{state.reason}{gone}"
    if state and state.state == "completed":
        return (
            "failed",
            f"{state.reason} with exit code 0, but no record of {missing_ranks(run, attempt)}",
        )
    if passed:
        return (
            "lost",
            f"its task went on to the next run; no record of {missing_ranks(run, attempt)}",
        )
    if command := _running_command(attempt):
        return "running", f"process {command}, but `hpcncf run` was killed and will write no record"
    return (
        "lost",
        f"its processes exited without writing a record for {missing_ranks(run, attempt)}",
    )


def _running_command(attempt: Attempt) -> int | None:
    """Return the process id of a command whose `hpcncf run` was killed, if it still runs here."""
    claim, now = attempt.claim, attempt.progress
    if claim is None or now is None or now.pid is None or now.process_started is None:
        return None
    here = claim.node == os.uname().nodename and is_same_process(now.pid, now.process_started)
    return now.pid if here else None


def _judge_end(run: Run, attempt: Attempt, end: End) -> StateAndReason:
    if end.reason == "timeout":
        return "timeout", f"stopped at its limit of {run.resources.timeout_min} min"
    if end.reason == "cancelled":
        return "cancelled", "while it ran"
    killed = _find_killed_rank(end.exit_codes)
    if killed:
        return "failed", killed
    if any(record.outcome != "completed" for record in attempt.ranks):
        return _from_records(attempt)
    code = next(((rank, code) for rank, code in enumerate(end.exit_codes) if code), None)
    if code:
        return "failed", describe_exit(*code)
    return (
        "lost",
        f"every rank exited with code 0, but no record of {missing_ranks(run, attempt)}",
    )


def _find_killed_rank(exit_codes: list[int | None]) -> str | None:
    """Describe the first rank that died of a signal which hpcncf never sends, or None."""
    for rank, code in enumerate(exit_codes):
        if code is not None and code < 0 and -code not in SENT_BY_US:
            return describe_exit(rank, code)
    return None


def _from_records(attempt: Attempt) -> StateAndReason:
    failed = attempt.failed
    if failed is None:
        return "stopped", f"{attempt.message or 'asked to stop'}, before it was done"
    if failed.error is None:
        return "failed", describe_exit(failed.rank, failed.exit_code or 0)
    message = failed.error.get("message", "").strip().splitlines()
    first = f": {message[0]}" if message else ""
    return "failed", f"rank {failed.rank}: {failed.error.get('type', 'error')}{first}"
