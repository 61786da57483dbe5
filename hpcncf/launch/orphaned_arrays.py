"""Record or cancel arrays that Slurm accepted from a submission that was killed."""

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
from hpcncf.slurm.query import run_query


def recover_arrays(paths: ResultPaths) -> None:
    """Record arrays that Slurm accepted just before their submitting process was killed.

    Arrays whose tasks lack input files are cancelled.

    Call it while the results are locked: an array that is being sent is no orphan.
    """
    for file, submission in _broken_submissions(paths):
        for array in _orphans(paths):
            jobs = _complete_jobs(paths, array, submission.sending)
            if jobs:
                update = {"jobs": [*submission.jobs, *jobs], "sending": []}
                submission = submission.model_copy(update=update)
            else:
                query.cancel([array])
        write_record(file, submission.model_copy(update={"sending": []}))


def _broken_submissions(paths: ResultPaths) -> Iterator[tuple[Path, Submission]]:
    """Yield submissions whose process on this machine was killed while submitting."""
    if not any(submission.sending for submission in read_submissions(paths).submissions):
        return
    for file in files(paths):
        try:
            one = read_record(file, Submission)
        except RecordError:
            continue
        ended = not is_same_process(one.submitter_pid, one.submitter_started)
        if one.sending and (one.user, one.host) == (user(), os.uname().nodename) and ended:
            yield file, one


def _orphans(paths: ResultPaths) -> list[str]:
    """Return ids of queued arrays of this folder that no submission lists.

    Raises HpcncfError if Slurm does not answer: its arrays could then be sent a second time.
    """
    submissions = read_submissions(paths).submissions
    known = set(query.array_ids(job.id for one in submissions for job in one.jobs))
    known |= {one.report_job for one in submissions if one.report_job}
    problems = list[str]()
    # The array's id, and submitit's script for it, in the user's own folder.
    command = ["squeue", "--noheader", f"--user={user()}", "--format=%F|%o"]
    text = run_query(command, problems)
    if problems:
        raise HpcncfError(
            f"{problems[0]}. An earlier submission was interrupted while it sent an array, and "
            "Slurm may have accepted it. Submit again when Slurm answers, or run on this machine "
            'with --cluster local (cluster="local" in Python).'
        )
    folder = f"{paths.submitit(user())}{os.sep}"
    rows = (line.strip().partition("|") for line in text.splitlines())
    arrays = dict.fromkeys(array for array, _, script in rows if script.startswith(folder))
    return [array for array in arrays if array not in known]


def _complete_jobs(paths: ResultPaths, array: str, tasks: list[list[str]]) -> list[SubmittedJob]:
    """Return the array's jobs if submitit's file for each task exists, else an empty list."""
    names = [f"{array}_{index}" for index in range(len(tasks))] if len(tasks) > 1 else [array]
    logs = paths.submitit(user())
    complete = all((logs / f"{job}_submitted.pkl").exists() for job in names)
    larger = (logs / f"{array}_{len(tasks)}_submitted.pkl").exists()
    if not complete or larger or not tasks:
        return []
    return [SubmittedJob(id=job, runs=runs) for job, runs in zip(names, tasks, strict=True)]
