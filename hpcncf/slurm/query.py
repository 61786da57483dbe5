"""Query squeue, sacct and scontrol, rate-limited, and parse their output."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.job.packs import batched
from hpcncf.slurm.pending_reasons import describe_reason
from hpcncf.slurm.states import NOT_OVER, STATES, JobState, state_of


def array_ids(job_ids: Iterable[str]) -> list[str]:
    """Reduce job ids to ids of jobs and arrays: `66_2` and `66_3` become `66`."""
    return sorted({job_id.partition("_")[0] for job_id in job_ids})


def expand_elements(job_id: str) -> list[str]:
    """Expand an id of array elements: `66_[2-4,7%2]` to 66_2, 66_3, 66_4 and 66_7.

    squeue lists elements that have not started in one row.
    """
    array = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", job_id)
    if not array:
        return [job_id]
    spans = [span.partition("-") for span in array[2].split(",") if span]
    return [
        f"{array[1]}_{number}"
        for first, _, last in spans
        for number in range(int(first), int(last or first) + 1)
    ]


def parse_duration(text: str) -> float | None:
    """Parse Slurm's duration `[DD-[HH:]]MM:SS[.mmm]` in seconds; None for UNLIMITED.

    Examples are `1-02:03:04`, `3:04` and `00:01.250`.
    """
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if match is None:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def parse_time(text: str) -> datetime | None:
    """Parse a time, and convert it to this machine's zone; None if the text is no time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None


SQUEUE_FIELDS: Final = (
    *("JobArrayID", "State", "Reason", "StartTime", "EndTime", "TimeUsed", "NodeList"),
    *("exit_code", "RestartCnt"),
)
SACCT_FIELDS: Final = ("JobID", "State", "ExitCode", "Elapsed", "End", "NodeList")
# squeue also lists ended jobs for MinJobAge (300 s unless the site says otherwise). A suffix
# instead of a width keeps it from cutting values.
SQUEUE: Final = (
    *("squeue", "--array", "--noheader", "--states=all"),
    f"--Format={','.join(f'{field}:|' for field in SQUEUE_FIELDS)}",
)
SACCT: Final = ("sacct", "--noheader", "--parsable2", f"--format={','.join(SACCT_FIELDS)}")
NOTHING: Final = ("", "N/A", "Unknown", "None assigned", "None", "(null)")


def read_squeue(text: str) -> dict[str, JobState]:
    """Parse the output of the command SQUEUE: job id -> state."""
    states = {}
    for row in _rows(text, len(SQUEUE_FIELDS)):
        job_id, word, reason, starts, ends, used, node, status, restarts = row
        state, detail = STATES.get(word.rstrip("+"), "unknown"), ""
        if state == "pending":
            detail = describe_reason(reason)
        elif status.isdecimal():  # up to 23.02, as wait() returned it: 256 x exit code + signal
            detail = _describe_end(word, int(status) >> 8, int(status) & 127)
        elif re.fullmatch(r"\d+:\d+", status):
            detail = _describe_end(word, *map(int, status.split(":")))
        states[job_id] = replace(
            state_of(word, job_id, detail),
            node=_clean(node),
            starts=_clean(starts) if state == "pending" else "",
            ended="" if state in NOT_OVER else _clean(ends),
            elapsed_s=parse_duration(used),
            restarts=int(restarts) if restarts.isdecimal() else 0,
        )
    return states


def _rows(text: str, width: int) -> Iterator[list[str]]:
    """Yield the cells of each line that begins with a job id; missing cells are empty.

    Real clusters also print steps before their job, an array's bare number before its elements, and
    nothing at all for some seconds.
    """
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if re.match(r"\d", cells[0]) and len(cells) > 1:
            yield (cells + [""] * width)[:width]


def _describe_end(word: str, code: int, by_signal: int) -> str:
    if not word.startswith("FAILED"):
        return ""
    if by_signal:
        return f"signal {by_signal}"
    return f"exit code {code}" + (f", as by signal {code - 128}" if 128 < code < 193 else "")


def read_sacct(text: str) -> dict[str, JobState]:
    """Parse the output of the command SACCT: job id -> state.

    A job with a step that ran out of memory may be FAILED or even COMPLETED, so steps are read too.
    """
    states: dict[str, JobState] = {}
    out_of_memory: set[str] = set()
    for job_id, word, exit_code, elapsed, ended, node in _rows(text, len(SACCT_FIELDS)):
        if "." in job_id:
            out_of_memory |= {job_id.split(".")[0]} if word.startswith("OUT_OF_ME") else set()
            continue
        code, _, signal = exit_code.partition(":")
        detail = ""
        if code.isdecimal():
            detail = _describe_end(word, int(code), int(signal) if signal.isdecimal() else 0)
        state = replace(
            state_of(word, job_id, detail),
            node=_clean(node),
            ended=_clean(ended),
            elapsed_s=parse_duration(elapsed),
        )
        states |= dict.fromkeys(expand_elements(job_id), state)
    for job_id in out_of_memory & set(states):
        state = state_of("OUT_OF_MEMORY", job_id)
        states[job_id] = replace(
            states[job_id], state=state.state, word=state.word, reason=state.reason
        )
    return states


def merge_states(queue: dict[str, JobState], account: dict[str, JobState]) -> dict[str, JobState]:
    """Merge states: squeue's for queued and running jobs, sacct's for ended jobs.

    sacct knows more about ended jobs, but learns it late.

    A job that only sacct takes for queued or running has an end that was not accounted for.
    """
    states = {
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
        known = states.get(job_id)
        if known is None or state.state in NOT_OVER or known.state == "unknown":
            states[job_id] = state
        else:
            states[job_id] = replace(known, restarts=state.restarts)
    return states


def _clean(text: str) -> str:
    return "" if text in NOTHING else text


# A busy controller answers late; `status` shows `unknown` rather than hang.
TIMEOUT_S: Final = 30
# One argument may have 131,072 bytes on Linux; more job ids take several calls.
MOST_IDS: Final = 5_000
MOST_WORDS: Final = 100


def job_states(job_ids: Sequence[str], problems: list[str]) -> dict[str, JobState]:
    """Query the state of each job or array element that Slurm knows: job id -> state.

    Errors go to `problems`; the jobs that they leave open are `unknown`.
    """
    if not job_ids:
        return {}
    errors = list[str]()
    states = read_squeue(query_jobs(SQUEUE, job_ids, errors))
    # sacct knows who cancelled a job, which step ran out of memory, and what squeue forgot.
    clear = (*NOT_OVER, "completed")
    if any(job_id not in states or states[job_id].state not in clear for job_id in job_ids):
        states = merge_states(states, read_sacct(query_jobs(SACCT, job_ids, errors)))
    problems += errors
    if any(error.startswith("squeue") for error in errors):
        states = dict.fromkeys(job_ids, JobState("unknown", "", "; ".join(errors))) | states
    elif not errors:
        states = _dropped_elements(job_ids, states) | states
    return {job_id: with_age(_with_user_name(state)) for job_id, state in states.items()}


def job_ends_at(job_id: str) -> datetime | None:
    """Query when a running job's time limit ends it; None if Slurm does not say."""
    text = query_jobs(("squeue", "--noheader", "--format=%e"), [job_id], [])
    return next(filter(None, map(parse_time, text.split())), None)


def _dropped_elements(
    job_ids: Sequence[str], states: Mapping[str, JobState]
) -> dict[str, JobState]:
    """Return `lost` states for array elements that Slurm no longer lists.

    Their arrays are known to Slurm.
    """
    arrays = set(array_ids(states))
    return {
        job_id: JobState(
            "lost",
            "",
            f"Slurm knows array {array}, but no longer its element {element}: most likely "
            "cancelled before it started",
        )
        for job_id in job_ids
        for array, _, element in [job_id.partition("_")]
        if array in arrays and element and job_id not in states
    }


def parse_config(text: str) -> dict[str, str]:
    """Parse the lines `Key = Value` of `scontrol show config` into a dictionary."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def query_jobs(
    command: Sequence[str],
    job_ids: Sequence[str],
    problems: list[str],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Run a Slurm command for these jobs, in as few calls as possible; return its output."""
    texts = list[str]()
    for part in batched(array_ids(job_ids), MOST_IDS):
        before = len(problems)
        texts.append(run_query([*command, "-j", ",".join(part)], problems, variables))
        if len(problems) > before:
            break
    return "".join(texts)


def run_query(
    command: list[str], problems: list[str], variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Run a Slurm command and return its output; errors are added to `problems`.

    `variables` are added to its environment.
    """
    if shutil.which(command[0]) is None:
        problems.append(f"{command[0]}: not found on this machine, so Slurm cannot be asked")
        return ""
    # The user's own filters and formats would change the output.
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SACCT_"))}
    plain |= {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            env={**plain, **variables},
        )
    except subprocess.TimeoutExpired:
        problems.append(f"{command[0]}: no answer within {TIMEOUT_S} s")
        return ""
    # squeue reports "Invalid job id" for a job that ended and left its memory.
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        # Retries and errors precede the last line: `Unable to contact slurm controller`.
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        message = re.sub(r"^\w+: (error|fatal): ", "", lines[-1])
        problems.append(f"{command[0]}: {message}")
    return done.stdout


def _with_user_name(state: JobState) -> JobState:
    """Replace the user id in sacct's `CANCELLED by 1000` by the user's name."""
    cancelled = re.search(r"CANCELLED by (\d+)", state.reason)
    if not cancelled:
        return state
    try:
        user = pwd.getpwuid(int(cancelled[1])).pw_name
    except KeyError:
        return state
    return replace(state, reason=state.reason.replace(cancelled[0], f"CANCELLED by {user}"))


def with_age(state: JobState) -> JobState:
    """Add the seconds since the job's end to its state."""
    ended = parse_time(state.ended)
    return replace(state, ended_ago_s=time.time() - ended.timestamp()) if ended else state


def cancel(job_ids: Sequence[str]) -> None:
    """Cancel the jobs that have not ended. Raises HpcncfError with scancel's message."""
    problems, arrays = list[str](), defaultdict[str, list[str]](list)
    for job_id in dict.fromkeys(job_ids):
        array, _, element = job_id.partition("_")
        arrays[array].append(element)
    # One word for an array, and one call of Slurm for all elements of a word.
    words = [
        f"{array}_[{','.join(part)}]" if part[0] else array
        for array, own in arrays.items()
        for part in batched(own, MOST_IDS)
    ]
    for part in batched(words, MOST_WORDS):
        run_query(["scancel", *part], problems)
    if problems:
        raise HpcncfError("; ".join(problems))


EVERY_S: Final = 15.0


class RateLimitedStates:
    """`job_states`, answered from memory if Slurm was asked less than `EVERY_S` ago."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._answers: dict[str, JobState] = {}
        self._asked: set[str] = set()
        self._problems: list[str] = []

    def __call__(self, ids: Sequence[str], problems: list[str]) -> dict[str, JobState]:
        now = time.monotonic()
        recent = self._asked_at is not None and now - self._asked_at < EVERY_S
        if recent and set(ids) <= self._asked:
            problems += self._problems
            return {
                job_id: replace(with_age(state), remembered=True)
                for job_id, state in self._answers.items()
            }
        self._problems = []
        self._answers = job_states(ids, self._problems)
        self._asked, self._asked_at = set(ids), now
        problems += self._problems
        return self._answers
