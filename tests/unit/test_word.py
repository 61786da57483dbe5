"""A rank of a task hears that one of its runs was cancelled."""

from __future__ import annotations

import os
import pwd
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hpcncf.launch.cancel import CancelCheck
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import read_record, write_record
from hpcncf.records.submissions import (
    Submission,
    SubmittedJob,
    begin,
    cancel,
    read_submissions,
    user,
)


def test_a_run_cancelled_since_it_was_submitted_is_heard_of(tmp_path: Path) -> None:
    paths = ResultPaths(tmp_path)
    word = CancelCheck(paths, every_s=0.0)
    assert not word.is_cancelled("a")
    begin(paths, "slurm", ["a", "b"], again=False)
    cancel(paths, ["a"])
    assert [word.is_cancelled(run) for run in "ab"] == [True, False]
    first = read_submissions(paths).submissions[0]
    begin(paths, "slurm", ["a"], again=False)
    assert not word.is_cancelled("a")
    assert word.is_cancelled("a", first.submitted_at), "the earlier submission is not to run it"


def test_a_submitter_whose_clock_is_ahead_does_not_make_deaf(tmp_path: Path) -> None:
    paths = ResultPaths(tmp_path)
    file = begin(paths, "slurm", ["a"], again=False)
    sent = read_record(file, Submission)
    ahead = datetime.fromisoformat(sent.submitted_at) + timedelta(minutes=10)
    write_record(file, sent.model_copy(update={"submitted_at": ahead.isoformat()}))
    cancel(paths, ["a"])
    assert CancelCheck(paths, every_s=0.0).is_cancelled("a")
    file = begin(paths, "slurm", ["a"], again=False)
    assert not CancelCheck(paths).is_cancelled("a", read_record(file, Submission).submitted_at)


def test_a_task_hears_what_is_said_of_its_own_submission(tmp_path: Path) -> None:
    """Whatever the clocks of the two submitters say."""
    paths = ResultPaths(tmp_path)
    for number, minutes in enumerate((10, 0), start=1):
        file = begin(paths, "slurm", ["a"], again=False)
        sent = read_record(file, Submission)
        at = datetime.fromisoformat(sent.submitted_at) + timedelta(minutes=minutes)
        job = SubmittedJob(id=str(number), runs=["a"])
        seen = {"submitted_at": at.isoformat(), "jobs": [job]}
        write_record(file, sent.model_copy(update=seen))
        if number == 1:
            cancel(paths, ["a"])
    heard = [CancelCheck(paths, job_id=job).is_cancelled("a") for job in ("1", "2", None)]
    assert heard == [True, False, False]
    last = read_submissions(paths).last("a")
    assert last.number == 2


def test_the_user_is_whom_slurm_takes_us_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    assert user() == pwd.getpwuid(os.getuid()).pw_name


def test_the_folder_is_not_looked_into_all_the_time(tmp_path: Path) -> None:
    paths = ResultPaths(tmp_path)
    begin(paths, "slurm", ["a"], again=False)
    word = CancelCheck(paths, every_s=1e6)
    assert not word.is_cancelled("a")
    cancel(paths, ["a"])
    assert not word.is_cancelled("a")
