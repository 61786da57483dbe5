"""Submissions: which runs were submitted where, by whom, as which Slurm jobs."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self
from uuid import uuid4

from pydantic import model_validator

from hpcncf.paths import ResultPaths
from hpcncf.records.claims import is_same_process, process_start
from hpcncf.records.code_version import Code
from hpcncf.records.schema import (
    Integer,
    LongText,
    Moment,
    Number,
    ProcessId,
    R,
    Record,
    RecordError,
    RecordPart,
    SlurmJobId,
    read_record,
    utc_now,
    write_record,
)

Cluster = Literal["local", "slurm"]
State = Literal[
    "planned",
    "pending",
    "running",
    "completed",
    "failed",
    "stopped",
    "cancelled",
    "timeout",
    "out_of_memory",
    "node_failed",
    "lost",
    "unknown",
]

CANCELLED: Final = ".cancelled.json"
NO_ROOM: Final = "Slurm had no room for more then: submit again when jobs have ended"


class SubmittedJob(RecordPart):
    """One local queue or one element of a Slurm array, with the runs it processes."""

    id: SlurmJobId
    """Slurm's `123_4`, or the process id on `host`."""
    runs: list[str]
    process_started: Number | None = None
    """When a local job's process started, in seconds since boot; None under Slurm."""

    @model_validator(mode="after")
    def a_local_job_is_a_process(self) -> Self:
        if self.process_started is not None and not re.fullmatch(r"[1-9]\d{0,9}", self.id):
            raise ValueError(f"expected the id of a process, came {self.id!r}")
        return self


class Submission(Record):
    """Record of one submission, written before anything is sent and again afterwards.

    Written twice, it shows a submission that was interrupted.
    """

    kind: Literal["submission"] = "submission"
    cluster: Cluster | Literal["debug"]
    """`debug`: in the submitter's own process, in versions before 0.2.0."""
    user: str
    host: str
    submitted_at: Moment
    number: Integer = 0
    """Its place among the folder's submissions: the clocks of two hosts may differ."""
    submitter_pid: ProcessId
    submitter_started: Number
    again: bool = False
    """Completed runs were asked for once more."""
    runs: list[str]
    """In the order in which they should run."""
    over: dict[str, Integer] = {}  # noqa: RUF012  pydantic copies it
    """Run -> the last attempt it had: that one has ended, or this would not have been submitted."""
    jobs: list[SubmittedJob]
    """Empty until the cluster has them."""
    error: LongText | None = None
    """Why it broke off."""
    code: list[Code] = []  # noqa: RUF012
    """As it was then: a rank that runs other code warns in its record."""
    sending: list[list[str]] = []  # noqa: RUF012
    """Runs by task of the array that Slurm was being given: it may have it, under an id unknown."""
    left: list[str] = []  # noqa: RUF012
    """Runs asked for that Slurm would not take now; the next submission sends them."""
    refused: dict[str, LongText] = {}  # noqa: RUF012
    """Run -> why it was left out: it asks for more than there is."""
    report: bool = False
    """When all have ended, their records are collected and reported."""
    report_job: str | None = None
    """Slurm's job that does it."""

    @cached_property
    def _job_of(self) -> dict[str, SubmittedJob]:
        return {run: job for job in self.jobs for run in job.runs}

    def job_of(self, run_id: str) -> SubmittedJob | None:
        return self._job_of.get(run_id)

    def broke_off(self) -> bool:
        """Whether this submission ended early, so that its runs without a job will not get one.

        Judged by what this machine can see.
        """
        if self.error is not None:
            return True
        if self.sending or self.host != os.uname().nodename:
            return False
        return not is_same_process(self.submitter_pid, self.submitter_started)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy as pydantic does, with fresh lookup tables for the copy's jobs."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("_job_of", None)
        return copy


class Cancellation(Record):
    """Record of runs that a user cancelled; the local queue reads it while it works."""

    kind: Literal["cancellation"] = "cancellation"
    user: str
    host: str
    cancelled_at: Moment
    runs: list[str]
    submissions: list[str] | None = None
    """When those were made that it is meant for: hosts' clocks differ. None: all before it."""

    def meant_for(self, submitted_at: str) -> bool:
        if self.submissions is None:
            return self.cancelled_at >= submitted_at
        return submitted_at in self.submissions


@dataclass(frozen=True)
class Submitted:
    """Everything a results folder contains about its submissions, the oldest first."""

    submissions: list[Submission]
    cancellations: list[Cancellation]
    problems: list[str] = field(default_factory=list)

    @cached_property
    def _last(self) -> dict[str, Submission]:
        found = dict[str, Submission]()
        for one in self.submissions:
            unsent = {run for run in one.runs if one.job_of(run) is None}
            kept = unsent if unsent and one.broke_off() else set()
            for run in one.runs:
                if run not in kept or run not in found or found[run].job_of(run) is None:
                    found[run] = one
        return found

    @cached_property
    def _cancelled(self) -> dict[str, list[Cancellation]]:
        found: dict[str, list[Cancellation]] = {}
        for one in sorted(self.cancellations, key=lambda one: one.cancelled_at):
            for run in one.runs:
                found.setdefault(run, []).append(one)
        return found

    def last(self, run_id: str) -> Submission | None:
        """The run's last submission that had a job for it, or else the last one of all.

        An interrupted submission has no job yet, and Slurm may still hold the job of the one
        before.
        """
        return self._last.get(run_id)

    def holding(self, job_id: str | None) -> Submission | None:
        """Return the submission to which a Slurm job belongs; None if it belongs to none."""
        held = (one for one in self.submissions if any(job.id == job_id for job in one.jobs))
        return next(held, None)

    def cancelled(self, run_id: str, submitted_at: str) -> Cancellation | None:
        """The run's last cancellation that applies to its current submission."""
        meant = (one for one in self._cancelled.get(run_id, []) if one.meant_for(submitted_at))
        return max(meant, key=lambda one: one.cancelled_at, default=None)

    @cached_property
    def refused(self) -> dict[str, str]:
        """Reasons why runs were left out, unless they have been submitted since."""
        refused: dict[str, str] = {}
        for one in self.submissions:
            refused = {run: why for run, why in refused.items() if run not in one.runs}
            refused |= one.refused | dict.fromkeys(one.left, NO_ROOM)
        return refused

    def unsent(self, again: bool = False) -> set[str]:
        """Runs for which Slurm had no room and that were not submitted since.

        All of them, or only those requested with `again`.
        """
        unsent: set[str] = set()
        for one in self.submissions:
            unsent = unsent.difference(one.runs).union(one.left if one.again or not again else [])
        return unsent


def user() -> str:
    """Return this user's name in Slurm, looked up by the user id and not by $LOGNAME."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def begin(
    paths: ResultPaths,
    cluster: Cluster,
    runs: list[str],
    again: bool,
    over: Mapping[str, int] = MappingProxyType({}),
    report: bool = False,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Write the record of a submission before anything is sent; return the file."""
    submission = Submission(
        cluster=cluster,
        user=user(),
        host=os.uname().nodename,
        submitted_at=utc_now(),
        number=1 + max((one.number for one in read_submissions(paths).submissions), default=0),
        submitter_pid=os.getpid(),
        submitter_started=process_start(os.getpid()),
        again=again,
        runs=runs,
        over=dict(over),
        jobs=[],
        report=report,
        refused=dict(refused),
    )
    path = paths.submissions / f"{_stamp(submission.submitted_at)}.json"
    write_record(path, submission)
    return path


def cancel(paths: ResultPaths, runs: list[str]) -> Path:
    """Record that these runs must not run (any more), and return the file."""
    cancellation = Cancellation(
        user=user(),
        host=os.uname().nodename,
        cancelled_at=utc_now(),
        runs=runs,
        submissions=[one.submitted_at for one in read_submissions(paths).submissions],
    )
    path = paths.submissions / f"{_stamp(cancellation.cancelled_at)}{CANCELLED}"
    write_record(path, cancellation)
    return path


def _stamp(moment: str) -> str:
    digits = "".join(char for char in moment[:23] if char.isdigit())
    return f"{digits[:8]}-{digits[8:14]}-{uuid4().hex[:8]}"  # two may submit in one second


def read_submissions(paths: ResultPaths) -> Submitted:
    """Read all submissions and cancellations; `problems` names those that cannot be read."""
    problems: list[str] = []
    submissions = list(_readable(files(paths), Submission, problems))
    return Submitted(
        sorted(submissions, key=lambda one: (one.number, one.submitted_at)),
        list(_readable(files(paths, cancelled=True), Cancellation, problems)),
        problems,
    )


def files(paths: ResultPaths, cancelled: bool = False) -> list[Path]:
    """List the files of all submissions, or of all cancellations."""
    found = paths.submissions.glob("[!.]*.json")
    return sorted(path for path in found if path.name.endswith(CANCELLED) is cancelled)


def _readable(files: list[Path], kind: type[R], problems: list[str]) -> Iterator[R]:
    for path in files:
        try:
            yield read_record(path, kind)
        except RecordError as error:
            problems.append(str(error))
