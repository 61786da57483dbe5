"""Asking Slurm, and telling it: one squeue, at most one sacct, one scancel, for any number."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.slurm import ids, replies, times
from hpcncf.slurm.states import NOT_OVER, JobState

# A busy controller answers late; `status` says `unknown` rather than hang.
TIMEOUT_S: Final = 30
# One argument may have 131,072 bytes on Linux; more jobs than that are told in several calls.
LONGEST: Final = 100_000


def job_states(job_ids: Sequence[str], problems: list[str]) -> dict[str, JobState]:
    """Job or array element -> what Slurm says of it; those it does not know are left out.

    Whatever cannot be asked is told in `problems`; the jobs it left open are `unknown`.
    """
    if not job_ids:
        return {}
    silent = list[str]()
    queue = replies.read_squeue(_asked(SQUEUE, job_ids, silent))
    found = queue
    if any(_told_more_by_sacct(queue.get(job_id)) for job_id in job_ids):
        account = replies.read_sacct(_asked(SACCT, job_ids, silent))
        found = replies.merged(queue, account)
    problems += silent
    if any(said.startswith("squeue") for said in silent):
        found = _unanswered(job_ids, silent) | found
    elif not silent:
        found = _dropped(job_ids, found) | found
    return {job_id: dated(_named(state)) for job_id, state in found.items()}


# squeue tells of ended jobs, too, for MinJobAge (300 s unless the site says otherwise).
SQUEUE: Final = ("squeue", "--array", "--noheader", "--states=all")
SACCT: Final = ("sacct", "--noheader", "--parsable2")
FORMATS: Final = {
    "squeue": f"--Format={replies.SQUEUE_FORMAT}",
    "sacct": f"--format={','.join(replies.SACCT_FIELDS)}",
}


def _told_more_by_sacct(state: JobState | None) -> bool:
    """Who cancelled it, which step ran out of memory; and whatever squeue has forgotten."""
    return state is None or state.state not in (*NOT_OVER, "completed")


def _unanswered(job_ids: Sequence[str], silent: Sequence[str]) -> dict[str, JobState]:
    return dict.fromkeys(job_ids, JobState("unknown", "", "; ".join(silent)))


def _dropped(job_ids: Sequence[str], found: Mapping[str, JobState]) -> dict[str, JobState]:
    """Elements of arrays that both know, and that neither lists (any more)."""
    arrays = set(ids.masters(found))
    return {
        job_id: JobState(
            "lost",
            "",
            f"Slurm knows array {master}, but its element {element} no "
            "longer: cancelled before it started, most likely",
        )
        for job_id in job_ids
        for master, _, element in [job_id.partition("_")]
        if master in arrays and element and job_id not in found
    }


def _asked(command: tuple[str, ...], job_ids: Sequence[str], problems: list[str]) -> str:
    return of_jobs([*command, FORMATS[command[0]]], job_ids, problems)


def of_jobs(
    command: Sequence[str],
    job_ids: Sequence[str],
    problems: list[str],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """What the command prints of these jobs and arrays, in as few calls as can name them."""
    texts = list[str]()
    for part in _parts(ids.masters(job_ids)):
        before = len(problems)
        texts.append(said([*command, "-j", ",".join(part)], problems, variables))
        if len(problems) > before:
            break
    return "".join(texts)


def _parts(words: Sequence[str]) -> Iterator[list[str]]:
    """In pieces that fit one argument."""
    part, length = list[str](), 0
    for word in words:
        if part and length + len(word) + 1 > LONGEST:
            yield part
            part, length = [], 0
        part.append(word)
        length += len(word) + 1
    if part:
        yield part


def said(
    command: list[str], problems: list[str], variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    """What the command prints, with these variables set; what goes wrong is told in `problems`."""
    if shutil.which(command[0]) is None:
        problems.append(f"{command[0]}: not found on this machine, so Slurm cannot be asked")
        return ""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            env={**_plain_environment(), **variables},
        )
    except subprocess.TimeoutExpired:
        problems.append(f"{command[0]}: no answer within {TIMEOUT_S} s")
        return ""
    # squeue calls a job that has ended and left its memory an invalid id.
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        problems.append(f"{command[0]}: {_last_line(done)}")
    return done.stdout


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Tries and errors stand before it: `Unable to contact slurm controller`."""
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return re.sub(r"^\w+: (error|fatal): ", "", lines[-1])


def _plain_environment() -> dict[str, str]:
    """Without the user's own filters and formats, which would change what is printed."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SQUEUE_", "SACCT_"))
    }
    return kept | {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}


def _named(state: JobState) -> JobState:
    """sacct tells who cancelled as a number."""
    found = re.search(r"CANCELLED by (\d+)", state.reason)
    if not found:
        return state
    try:
        user = pwd.getpwuid(int(found.group(1))).pw_name
    except KeyError:
        return state
    return replace(state, reason=state.reason.replace(found.group(), f"CANCELLED by {user}"))


def dated(state: JobState) -> JobState:
    """With how long ago it ended."""
    ended = times.moment(state.ended)
    return replace(state, ended_ago_s=time.time() - ended.timestamp()) if ended else state


def cancel(job_ids: Sequence[str]) -> None:
    """Those that have ended meanwhile need none. Raises HpcncfError with what scancel said."""
    problems = list[str]()
    for part in _parts(ids.together(job_ids)):
        said(["scancel", *part], problems)
    if problems:
        raise HpcncfError("; ".join(problems))
