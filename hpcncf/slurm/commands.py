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
from hpcncf.slurm import replies
from hpcncf.slurm.states import UNDER_WAY, JobState

# A busy controller answers late; `status` says `unknown` rather than hang.
TIMEOUT_S: Final = 30
# One argument may have 131,072 bytes on Linux; more jobs than that are told in several calls.
LONGEST: Final = 100_000


def job_states(ids: Sequence[str], problems: list[str]) -> dict[str, JobState]:
    """Job or array element -> what Slurm says of it; those it does not know are left out.

    Whatever cannot be asked is told in `problems`; the jobs it left open are `unknown`.
    """
    if not ids:
        return {}
    silent = list[str]()
    queue = replies.read_squeue(_asked(SQUEUE, ids, silent))
    found = queue
    if any(_told_more_by_sacct(queue.get(job_id)) for job_id in ids):
        account = replies.read_sacct(_asked(SACCT, ids, silent))
        found = replies.merged(queue, account)
    problems += silent
    if any(said.startswith("squeue") for said in silent):
        found = _unanswered(ids, silent) | found
    elif not silent:
        found = _dropped(ids, found) | found
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
    return state is None or state.state not in (*UNDER_WAY, "completed")


def _unanswered(ids: Sequence[str], silent: Sequence[str]) -> dict[str, JobState]:
    return dict.fromkeys(ids, JobState("unknown", "", "; ".join(silent)))


def _dropped(ids: Sequence[str], found: Mapping[str, JobState]) -> dict[str, JobState]:
    """Elements of arrays that both know, and that neither lists (any more)."""
    arrays = {job_id.split("_")[0] for job_id in found}
    return {
        job_id: JobState(
            "lost",
            "",
            f"Slurm knows array {master}, but its element {element} no "
            "longer: cancelled before it started, most likely",
        )
        for job_id in ids
        for master, _, element in [job_id.partition("_")]
        if master in arrays and element and job_id not in found
    }


def _asked(command: tuple[str, ...], ids: Sequence[str], problems: list[str]) -> str:
    masters = sorted({job_id.split("_")[0] for job_id in ids})
    texts = list[str]()
    for part in _parts(masters):
        texts.append(said([*command, FORMATS[command[0]], "-j", ",".join(part)], problems))
        if problems and problems[-1].startswith(command[0]):
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
    ended = replies.moment(state.ended)
    return replace(state, ended_ago_s=time.time() - ended.timestamp()) if ended else state


def cancel(ids: Sequence[str]) -> None:
    """Raises HpcncfError with what scancel said."""
    if shutil.which("scancel") is None:
        raise HpcncfError("scancel: not found on this machine: cancel where Slurm is")
    for part in _parts(whole_arrays(ids)):
        done = subprocess.run(["scancel", *part], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise HpcncfError(f"scancel: {done.stderr.strip() or f'exit code {done.returncode}'}")


def whole_arrays(ids: Sequence[str]) -> list[str]:
    """`12_[0-3,7]` for the elements of an array: few words for thousands of jobs."""
    arrays: dict[str, list[int]] = {}
    for job_id in dict.fromkeys(ids):
        master, _, element = job_id.partition("_")
        arrays.setdefault(master, []).extend([int(element)] if element.isdecimal() else [])
    return [
        word
        for master, numbers in arrays.items()
        for word in (_elements(master, sorted(numbers)) if numbers else [master])
    ]


def _elements(master: str, numbers: Sequence[int]) -> list[str]:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return [f"{master}_{texts[0]}"] if len(numbers) == 1 else [f"{master}_[{','.join(texts)}]"]
