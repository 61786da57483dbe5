"""Query squeue, sacct and scontrol, rate-limited, and parse their output."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.slurm.states import NOT_OVER, STATES, JobState, in_words, state_of


def master(job_id: str) -> str:
    """What names all of an array: Slurm is asked by it, not by each of thousands of elements."""
    return job_id.partition("_")[0]


def masters(job_ids: Iterable[str]) -> list[str]:
    """Each once."""
    return sorted({master(job_id) for job_id in job_ids})


def elements(job_id: str) -> list[str]:
    """`66_[2-4,7%2]` -> 66_2, 66_3, 66_4, 66_7: those that never started share a row."""
    found = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", job_id)
    if not found:
        return [job_id]
    spans = [span.partition("-") for span in found.group(2).split(",") if span]
    return [
        f"{found.group(1)}_{number}"
        for first, _, last in spans
        for number in range(int(first), int(last or first) + 1)
    ]


def together(job_ids: Sequence[str]) -> list[str]:
    """`12_[0-3,7]` for the elements of an array: few words for thousands of jobs."""
    arrays: dict[str, list[int]] = {}
    for job_id in dict.fromkeys(job_ids):
        array, _, element = job_id.partition("_")
        arrays.setdefault(array, []).extend([int(element)] if element.isdecimal() else [])
    return [
        word
        for array, numbers in arrays.items()
        for word in (_array_ids(array, sorted(numbers)) if numbers else [array])
    ]


def _array_ids(array: str, numbers: Sequence[int]) -> list[str]:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return [f"{array}_{texts[0]}"] if len(numbers) == 1 else [f"{array}_[{','.join(texts)}]"]


def seconds(text: str) -> float | None:
    """`[DD-[HH:]]MM:SS[.mmm]`: `1-02:03:04`, `3:04`, `00:01.250`; None for UNLIMITED, say."""
    found = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if found is None:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def moment(text: str) -> datetime | None:
    """This machine's local time; None where there is none."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None


# Odd rows that were seen on a real cluster, and are passed over: steps before their job, an
# array's
# bare number before its elements, nothing at all for some seconds.

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
    detail = in_words(reason) if ours == "pending" else _exit_code_of_wait(word, exit_code)
    return replace(
        state_of(word, job_id, detail),
        node=_some(node),
        starts=_some(starts) if ours == "pending" else "",
        ended="" if ours in NOT_OVER else _some(ends),
        elapsed_s=seconds(used),
        restarts=int(restarts) if restarts.isdecimal() else 0,
    )


def _exit_code_of_wait(word: str, status: str) -> str:
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
            state_of(word, job_id, _exit_code_of_pair(word, exit_code)),
            node=_some(node),
            ended=_some(ended),
            elapsed_s=seconds(elapsed),
        )
        found |= dict.fromkeys(elements(job_id), told)
    for job_id in starved & set(found):
        told = state_of("OUT_OF_MEMORY", job_id)
        found[job_id] = replace(found[job_id], state=told.state, word=told.word, reason=told.reason)
    return found


def _exit_code_of_pair(word: str, exit_code: str) -> str:
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
    queue = read_squeue(_query_jobs(SQUEUE, job_ids, silent))
    found = queue
    if any(_needs_sacct(queue.get(job_id)) for job_id in job_ids):
        account = read_sacct(_query_jobs(SACCT, job_ids, silent))
        found = merged(queue, account)
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
    "squeue": f"--Format={SQUEUE_FORMAT}",
    "sacct": f"--format={','.join(SACCT_FIELDS)}",
}


def _needs_sacct(state: JobState | None) -> bool:
    """Who cancelled it, which step ran out of memory; and whatever squeue has forgotten."""
    return state is None or state.state not in (*NOT_OVER, "completed")


def _unanswered(job_ids: Sequence[str], silent: Sequence[str]) -> dict[str, JobState]:
    return dict.fromkeys(job_ids, JobState("unknown", "", "; ".join(silent)))


def _dropped(job_ids: Sequence[str], found: Mapping[str, JobState]) -> dict[str, JobState]:
    """Elements of arrays that both know, and that neither lists (any more)."""
    arrays = set(masters(found))
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


def _query_jobs(command: tuple[str, ...], job_ids: Sequence[str], problems: list[str]) -> str:
    return query_jobs([*command, FORMATS[command[0]]], job_ids, problems)


def query_jobs(
    command: Sequence[str],
    job_ids: Sequence[str],
    problems: list[str],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """What the command prints of these jobs and arrays, in as few calls as can name them."""
    texts = list[str]()
    for part in _chunks(masters(job_ids)):
        before = len(problems)
        texts.append(run_query([*command, "-j", ",".join(part)], problems, variables))
        if len(problems) > before:
            break
    return "".join(texts)


def _chunks(words: Sequence[str]) -> Iterator[list[str]]:
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


def run_query(
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
    ended = moment(state.ended)
    return replace(state, ended_ago_s=time.time() - ended.timestamp()) if ended else state


def cancel(job_ids: Sequence[str]) -> None:
    """Those that have ended meanwhile need none. Raises HpcncfError with what scancel said."""
    problems = list[str]()
    for part in _chunks(together(job_ids)):
        run_query(["scancel", *part], problems)
    if problems:
        raise HpcncfError("; ".join(problems))


EVERY_S: Final = 15.0


class Gently:
    """Answers as `commands.job_states`, from memory where Slurm was asked lately."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._asked_at: float | None = None
        self._answers: dict[str, JobState] = {}
        self._asked: set[str] = set()
        self._problems: list[str] = []

    def __call__(self, ids: Sequence[str], problems: list[str]) -> dict[str, JobState]:
        now = time.monotonic()
        lately = self._asked_at is not None and now - self._asked_at < self._every_s
        if lately and set(ids) <= self._asked:
            problems += self._problems
            return {
                job_id: replace(dated(state), remembered=True)
                for job_id, state in self._answers.items()
            }
        self._problems = []
        self._answers = job_states(ids, self._problems)
        self._asked, self._asked_at = set(ids), now
        problems += self._problems
        return self._answers
