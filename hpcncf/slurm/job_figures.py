"""Figures of one job: what Slurm's accounting counted, and what its controller knows better.

Accounting lags by seconds to minutes. A job that squeue calls running or pending is that, whatever
sacct says; of a job that ended, sacct knows more.
"""

from __future__ import annotations

import getpass
import re
import shutil
from collections.abc import Sequence
from typing import Final

from hpcncf.errors import HpcncfError, UsageError
from hpcncf.explain.conclude import FIELDS
from hpcncf.explain.fields import JobFields, state_word
from hpcncf.explain.read import read_text
from hpcncf.explain.structured import tres_figure
from hpcncf.slurm.pending_reasons import describe_reason
from hpcncf.slurm.query import NOTHING, parse_duration, run_query

JOB_ID: Final = re.compile(r"[1-9]\d{0,9}(?:_\d{1,7}|\+\d{1,4})?")
"""Id of a job, an array's task or a component of a heterogeneous job."""
NO_JOB_ID: Final = re.compile(r"\d{1,12}(?:_\[?[\d,%-]*\]?|\.(?:batch|extern|\d+)|\+|)")
SACCT: Final = ("sacct", "--duplicates", "--parsable2", f"--format={FIELDS},User")
SSTAT: Final = ("sstat", "--allsteps", "--parsable2", "--format=JobID,NTasks,AveCPU,MaxRSS")
LIVE_FIELDS: Final = (
    *("JobArrayID", "State", "Reason", "TimeUsed", "TimeLimit", "NumNodes", "NumCPUs"),
    *("NumTasks", "tres-alloc", "RestartCnt", "UserName"),
)
LIVE: Final = (
    *("squeue", "--array", "--noheader", "--states=all"),
    f"--Format={','.join(f'{field}:|' for field in LIVE_FIELDS)}",
)
NOT_COMPLETE: Final = "its accounting is not complete yet: ask again in a minute"
NO_END: Final = (
    "accounting has no end of it, and Slurm's controller no longer knows it: how it ended, and "
    "what it used, was not counted"
)


def looks_like_job_id(text: str) -> bool:
    """Return whether a word is meant as a job's id, be it the id of a step or of many tasks."""
    return bool(JOB_ID.fullmatch(text) or NO_JOB_ID.fullmatch(text))


def read_job(job: str) -> list[JobFields]:
    """Ask Slurm for a job's figures: one entry, or one for each component of a het job.

    Raises UsageError where there is no Slurm, for an unknown id and for an array without a task;
    HpcncfError if Slurm does not answer.
    """
    if not JOB_ID.fullmatch(job):
        raise UsageError(
            f"{job}: expected the id of a job (123), of an array's task (123_4) or of a part of a "
            "heterogeneous job (123+1)"
        )
    if shutil.which("sacct") is None:
        raise UsageError(
            f"job {job}: there is no sacct here. On another machine, use what the scheduler prints "
            f"of the job: seff {job} > job.txt, and give job.txt instead of {job}"
        )
    problems: list[str] = []
    text = run_query([*SACCT, "-j", job], problems)
    silent: list[str] = []
    live = _read_live(job, silent)
    if problems and not live:
        _refuse(job, problems)
    found = read_text(text)
    if "+" in job:  # Slurm answers with all parts
        found = [each for each in found if each.id == job]
        live = {name: each for name, each in live.items() if name == job}
    _refuse_array(job, [*(each.id for each in found), *live])
    if len(found) == 1 and found[0].is_running:
        found = _with_samples(text, found[0])
    if len(found) == len(live) == 1:  # sacct may show a task as one of many: `66_[3-19]`
        found[0].id = next(iter(live))
    accounted = {each.id: each for each in found}
    jobs = [_merge(accounted.get(name), live.get(name), silent) for name in accounted | live]
    if not jobs:
        raise UsageError(
            f"job {job}: sacct knows no such job of yours; expected the id of a job of this "
            "cluster, such as 123, 123_4 or 123+1 (some clusters show a job to its user only)"
        )
    owner = _owner(text)
    for each in jobs:
        each.id = job if len(jobs) == 1 else each.id
        if owner and owner != getpass.getuser():
            each.notes.append(f"a job of {owner}")
        each.notes += problems
    return jobs


def _refuse(job: str, problems: Sequence[str]) -> None:
    said = "; ".join(problems)
    if "accounting storage is disabled" in said:
        raise UsageError(
            f"job {job}: this cluster keeps no accounting ({said}), so nobody counted what an "
            "ended job used: submit it by `hpcncf sbatch`, which does"
        )
    raise HpcncfError(said)


def _refuse_array(job: str, names: Sequence[str]) -> None:
    tasks = [name for name in names if name.startswith(f"{job}_")]
    if not tasks:
        return
    number = re.search(r"_\[?(\d+)", tasks[0])
    raise UsageError(
        f"job {job}: an array; give one of its tasks, such as {job}_{number[1] if number else 0}, "
        f"or all as a table: sacct -j {job} --parsable2 --format={FIELDS} | hpcncf explain"
    )


def _owner(text: str) -> str:
    """Return the user in the last column of the first row; empty without one."""
    return next((row.rpartition("|")[2] for row in text.splitlines()[1:2]), "")


def _read_live(job: str, problems: list[str]) -> dict[str, JobFields]:
    """Ask squeue, which also lists jobs that ended in the last minutes: id -> fields.

    Errors are added to `problems`; a job that it does not know is none.
    """
    text = run_query([*LIVE, "-j", job], problems)
    rows = (line.split("|")[: len(LIVE_FIELDS)] for line in text.splitlines())
    fields = [_live_fields(row) for row in rows if len(row) == len(LIVE_FIELDS)]
    return {each.id: each for each in fields}


def _live_fields(row: Sequence[str]) -> JobFields:
    name, word, reason, used, limit, nodes, cores, tasks, tres, restarts, user = (
        "" if cell.strip() in NOTHING else cell.strip() for cell in row
    )
    memory, gpus = tres_figure(tres, "mem"), tres_figure(tres, "gres/gpu")
    live = JobFields(
        "squeue",
        name,
        state_word(word) or word,
        nodes=_count(nodes),
        tasks=_count(tasks),
        cores=_count(cores),
        elapsed_s=parse_duration(used),
        limit_s=parse_duration(limit),
        memory_asked_mib=memory / 2**20 if memory else None,
        gpus=int(gpus) if gpus else None,
        attempts=int(restarts) + 1 if _count(restarts) else None,
    )
    if live.is_waiting and reason:
        live.notes.append(f"it waits: {describe_reason(reason)}")
    if user and user != getpass.getuser():
        live.notes.append(f"a job of {user}")
    return live


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) else None


def _with_samples(text: str, job: JobFields) -> list[JobFields]:
    """Read a running job again, with what sstat sampled of its steps so far."""
    samples = run_query([*SSTAT, "-j", job.id], [])
    if samples.count("\n") < 2:
        return [job]
    # sstat calls an array's task by its number as a job.
    header, *rows = samples.splitlines()
    named = [re.sub(r"^\d+(?:[_+]\d+)?\.", f"{job.id}.", row) for row in rows]
    return read_text("\n".join([text, header, *named]))


def _merge(accounted: JobFields | None, live: JobFields | None, silent: Sequence[str]) -> JobFields:
    """Join what accounting and the controller know of a job; one of them may know nothing.

    `silent`: why the controller did not answer.
    """
    if live is None:
        assert accounted is not None
        if not _is_over(accounted) and not silent:
            accounted.state = ""
            accounted.notes.append(NO_END)
        elif not _is_over(accounted):
            accounted.notes += silent
        return accounted
    if live.is_waiting:
        return live
    is_last = accounted is not None and (accounted.attempts or 1) >= (live.attempts or 1)
    if accounted is not None and is_last and accounted.state == live.state:
        accounted.elapsed_s = accounted.elapsed_s if _is_over(live) else live.elapsed_s
        return accounted
    if not _is_over(live):
        return live
    if accounted is not None and is_last and _is_over(accounted):
        return accounted
    live.notes.append(NOT_COMPLETE)
    return live


def _is_over(job: JobFields) -> bool:
    return not job.is_waiting and not job.is_running
