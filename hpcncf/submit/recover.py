"""Find arrays that a killed submitter left unrecorded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hpcncf.errors import HpcncfError
from hpcncf.paths import ResultPaths
from hpcncf.records.claims import is_same_process
from hpcncf.records.schema import RecordError, read_record, write_record
from hpcncf.records.submissions import Submission, SubmittedJob, files, read_submissions, user
from hpcncf.slurm import query
from hpcncf.slurm.query import masters

# The array's id, and the script that it was made from: submitit's, in the user's own folder.
QUEUE = "%F|%o"


def mend(paths: ResultPaths) -> None:
    """Note what Slurm has of it; where its tasks lack what they need to start, cancel them.

    To be called while locked: what is being sent just now is no orphan.
    """
    for file, submission in _broken(paths):
        for master in _orphans(paths):
            jobs = _complete_jobs(paths, master, submission.sending)
            if not jobs:
                query.cancel([master])
                continue
            noted = {"jobs": [*submission.jobs, *jobs], "sending": []}
            submission = submission.model_copy(update=noted)
        write_record(file, submission.model_copy(update={"sending": []}))


def _broken(paths: ResultPaths) -> Iterator[tuple[Path, Submission]]:
    """This user's, whose process was on this machine and is gone."""
    me, host = user(), os.uname().nodename
    if not any(one.sending for one in read_submissions(paths).submissions):
        return
    for file in files(paths):
        try:
            one = read_record(file, Submission)
        except RecordError:
            continue
        ended = not is_same_process(one.submitter_pid, one.submitter_started)
        if one.sending and (one.user, one.host) == (me, host) and ended:
            yield file, one


def _orphans(paths: ResultPaths) -> list[str]:
    """Arrays in the queue that come from this folder and that no submission knows.

    Raises HpcncfError where Slurm does not tell: what it has could then be sent a second time.
    """
    known = read_submissions(paths).submissions
    noted = set(masters(job.id for one in known for job in one.jobs))
    noted |= {one.report_job for one in known if one.report_job}
    mine = f"--user={user()}"
    problems = list[str]()
    said = query.run_query(["squeue", "--noheader", mine, f"--format={QUEUE}"], problems)
    if problems:
        raise HpcncfError(
            f"{problems[0]}; a submission from here broke off while Slurm was given an array, and "
            "whether it has it is not known: submit again when Slurm answers"
        )
    folder = f"{paths.submitit(user())}{os.sep}"
    rows = (line.strip().partition("|") for line in said.splitlines())
    found = dict.fromkeys(master for master, _, script in rows if script.startswith(folder))
    return [master for master in found if master not in noted]


def _complete_jobs(paths: ResultPaths, master: str, tasks: list[list[str]]) -> list[SubmittedJob]:
    """The array's jobs, where each task finds what it is to do; else none."""
    names = [f"{master}_{index}" for index in range(len(tasks))] if len(tasks) > 1 else [master]
    logs = paths.submitit(user())
    there = all((logs / f"{job}_submitted.pkl").exists() for job in names)
    more = (logs / f"{master}_{len(tasks)}_submitted.pkl").exists()
    if not there or more or not tasks:
        return []
    return [SubmittedJob(id=job, runs=runs) for job, runs in zip(names, tasks, strict=True)]
