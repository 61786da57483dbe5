"""What squeue and sacct print, read as the states of jobs.

Odd rows that were seen on a real cluster, and are passed over: steps before their job, an array's
bare number before its elements, nothing at all for some seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from hpcncf.slurm import ids
from hpcncf.slurm.reasons import in_words
from hpcncf.slurm.states import NOT_OVER, STATES, JobState, state_of
from hpcncf.slurm.times import seconds

SQUEUE_FIELDS: Final = (
    "JobArrayID",
    "State",
    "Reason",
    "StartTime",
    "EndTime",
    "TimeUsed",
    "NodeList",
    "exit_code",
    "RestartCnt",
)
# A suffix instead of a width: nothing is cut off.
SQUEUE_FORMAT: Final = ",".join(f"{field}:|" for field in SQUEUE_FIELDS)
SACCT_FIELDS: Final = ("JobID", "State", "ExitCode", "Elapsed", "End", "NodeList")
NOTHING: Final = ("", "N/A", "Unknown", "None assigned", "None", "(null)")


def read_squeue(text: str) -> dict[str, JobState]:
    """`squeue --array --states=all --noheader --Format=SQUEUE_FORMAT`: job id -> state."""
    return {row[0]: _queued(*row) for row in _rows(text, len(SQUEUE_FIELDS))}


def _rows(text: str, width: int) -> Iterator[list[str]]:
    """The cells of each line that begins with a job's id; those at its end may be missing."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if re.match(r"\d", cells[0]) and len(cells) > 1:
            yield (cells + [""] * width)[:width]


def _queued(
    job_id: str,
    word: str,
    reason: str,
    starts: str,
    ends: str,
    used: str,
    node: str,
    exit_code: str,
    restarts: str,
) -> JobState:
    ours = STATES.get(word.rstrip("+"), "unknown")
    detail = in_words(reason) if ours == "pending" else _of_wait_status(word, exit_code)
    return replace(
        state_of(word, job_id, detail),
        node=_some(node),
        starts=_some(starts) if ours == "pending" else "",
        ended="" if ours in NOT_OVER else _some(ends),
        elapsed_s=seconds(used),
        restarts=int(restarts) if restarts.isdecimal() else 0,
    )


def _of_wait_status(word: str, status: str) -> str:
    """squeue prints the number that `wait` gave: 256 x the exit code + the signal."""
    if not word.startswith("FAILED") or not status.isdecimal():
        return ""
    return _how(int(status) >> 8, int(status) & 127)


def _how(code: int, by_signal: int) -> str:
    if by_signal:
        return f"signal {by_signal}"
    return f"exit code {code}" + (f", as by signal {code - 128}" if 128 < code < 193 else "")


def read_sacct(text: str) -> dict[str, JobState]:
    """`sacct --noheader --parsable2 --format=SACCT_FIELDS`: job id -> state.

    A step that ran out of memory leaves its job FAILED, or even COMPLETED: the steps tell.
    """
    found: dict[str, JobState] = {}
    starved: set[str] = set()
    for job_id, word, exit_code, elapsed, ended, node in _rows(text, len(SACCT_FIELDS)):
        if "." in job_id:
            starved |= {job_id.split(".")[0]} if word.startswith("OUT_OF_ME") else set()
            continue
        told = replace(
            state_of(word, job_id, _of_pair(word, exit_code)),
            node=_some(node),
            ended=_some(ended),
            elapsed_s=seconds(elapsed),
        )
        found |= dict.fromkeys(ids.elements(job_id), told)
    for job_id in starved & set(found):
        told = state_of("OUT_OF_MEMORY", job_id)
        found[job_id] = replace(found[job_id], state=told.state, word=told.word, reason=told.reason)
    return found


def _of_pair(word: str, exit_code: str) -> str:
    """sacct's `code:signal` where it tells more than the state."""
    code, _, by_signal = exit_code.partition(":")
    if not word.startswith("FAILED") or not code.isdecimal():
        return ""
    return _how(int(code), int(by_signal) if by_signal.isdecimal() else 0)


def merged(queue: dict[str, JobState], account: dict[str, JobState]) -> dict[str, JobState]:
    """squeue knows best what is under way; of what has ended sacct tells more, some seconds late.

    What sacct takes for under way and squeue does not know has an end that nobody accounted for.
    """
    found = {
        job_id: replace(
            state,
            state="unknown",
            word="",
            reason=f"sacct last knew Slurm job {job_id} as {state.word}",
        )
        if state.state in NOT_OVER
        else state
        for job_id, state in account.items()
    }
    for job_id, state in queue.items():
        known = found.get(job_id)
        if known is None or state.state in NOT_OVER or known.state == "unknown":
            found[job_id] = state
        else:
            found[job_id] = replace(known, restarts=state.restarts)
    return found


def _some(text: str) -> str:
    return "" if text in NOTHING else text
