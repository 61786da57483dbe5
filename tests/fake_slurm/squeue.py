"""squeue: `-o` with its letters, `-O` with its names and suffixes."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator
from typing import Final

from fake_slurm.cluster import Cluster
from fake_slurm.jobs import SHORT, Job, folded, spanned
from fake_slurm.request import Refused
from fake_slurm.times import clock, stamp

DEFAULT: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
SHOWN_S: Final = 300
"""How long it knows a job that has ended (MinJobAge)."""


def answer(cluster: Cluster, words: list[str]) -> str:
    """Raises Refused where it knows none of the jobs."""
    asked = _options().parse_args(words)
    jobs = _asked_for(cluster, asked)
    rows = list(_whole(jobs)) if asked.array else list(_collapsed(jobs))
    lines = [_line(job, name, asked) for name, job in rows]
    head = [] if asked.noheader else [_head(asked)]
    return "".join(f"{line}\n" for line in [*head, *lines])


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser("squeue", add_help=False, allow_abbrev=False)
    options.add_argument("-r", "--array", action="store_true")
    options.add_argument("-h", "--noheader", action="store_true")
    options.add_argument("--me", action="store_true")
    options.add_argument("-a", "--all", action="store_true")
    for names in (("-j", "--jobs"), ("-o", "--format"), ("-O", "--Format"), ("-t", "--states")):
        options.add_argument(*names)
    for names in (("-u", "--user"), ("-p", "--partition"), ("-n", "--name"), ("-S", "--sort")):
        options.add_argument(*names)
    return options


def _asked_for(cluster: Cluster, asked: argparse.Namespace) -> list[Job]:
    jobs = cluster.queue.jobs
    if asked.jobs:
        words = asked.jobs.split(",")
        jobs = [job for word in words for job in cluster.queue.find(word)]
        if len(words) == 1 and not any(_remembered(job) for job in jobs):
            raise Refused("slurm_load_jobs error: Invalid job id specified\n")
    states = (asked.states or "").upper()
    jobs = [job for job in jobs if _remembered(job)]
    if asked.name is not None:
        jobs = [job for job in jobs if job.title in asked.name.split(",")]
    if states == "ALL":
        return jobs
    if states:
        wanted = set(states.split(","))
        return [job for job in jobs if wanted & {job.shown, SHORT.get(job.shown, "")}]
    return [job for job in jobs if not job.over or job.completing]


def _remembered(job: Job) -> bool:
    if job.forgotten:
        return False
    return job.ended is None or time.time() - job.ended < SHOWN_S


def _whole(jobs: list[Job]) -> Iterator[tuple[str, Job]]:
    return ((job.name, job) for job in jobs)


def _collapsed(jobs: list[Job]) -> Iterator[tuple[str, Job]]:
    """Elements that have not started share a line."""
    told: set[int] = set()
    for job in jobs:
        if job.array is None or job.numbered:
            yield job.name, job
        elif job.array not in told:
            told.add(job.array)
            left = [one.element for one in jobs if one.array == job.array and not one.numbered]
            throttle = f"%{job.request.throttle}" if job.request.throttle else ""
            yield f"{job.array}_[{spanned([e for e in left if e is not None])}{throttle}]", job


def _line(job: Job, name: str, asked: argparse.Namespace) -> str:
    if asked.Format:
        cells = (_named(field) for field in asked.Format.split(","))
        return "".join(_padded(NAMES[key](job, name), width) for key, width in cells)
    return re.sub(
        LETTER,
        lambda found: _sized(LETTERS[found[2]](job, name), found[1]),
        asked.format or DEFAULT,
    )


LETTER: Final = r"%(\.?\d*)([A-Za-z])"


def _head(asked: argparse.Namespace) -> str:
    if asked.Format:
        cells = (_named(field) for field in asked.Format.split(","))
        return "".join(_padded(key.upper(), width) for key, width in cells)
    text = asked.format or DEFAULT
    return re.sub(LETTER, lambda found: _sized(HEADS.get(found[2], "?"), found[1]), text)


def _named(field: str) -> tuple[str, str]:
    key, _, width = field.partition(":")
    return key.lower(), width


def _padded(text: str, width: str) -> str:
    """`:30` is a width, anything else a suffix; 20 where nothing is said."""
    if width and not width.lstrip(".").isdigit():
        return text + width
    number = int(width.lstrip(".") or 20)
    return text[:number].ljust(number)


def _sized(text: str, width: str) -> str:
    number = int(width.lstrip(".") or 0)
    cut = text[:number] if number else text
    return cut.rjust(number) if width.startswith(".") else cut.ljust(number)


def _start(job: Job, _: str) -> str:
    if job.began is None and job.reason == "BeginTime" and job.eligible:
        return stamp(job.eligible)
    return stamp(job.began) if job.began else "N/A"


def _end(job: Job, _: str) -> str:
    if job.began is None:
        return "N/A" if job.ended is None else stamp(job.ended)
    return stamp(job.ended or job.began + job.limit_min * 60)


def _waits(job: Job, _: str) -> str:
    """The nodes of a job that runs, else why it does not."""
    return folded(job.nodes) if job.nodes else f"({job.reason})"


def _reason(job: Job, _: str) -> str:
    return {"FAILED": "NonZeroExitCode", "TIMEOUT": "TimeLimit"}.get(job.state, job.reason)


Field = Callable[[Job, str], str]
LETTERS: Final[dict[str, Field]] = {
    "A": lambda job, _: str(job.number),
    "C": lambda job, _: str(job.cpus),
    "D": lambda job, _: str(job.request.asked.nodes),
    "F": lambda job, _: str(job.array if job.array is not None else job.number),
    "K": lambda job, _: "N/A" if job.element is None else str(job.element),
    "M": lambda job, _: clock(job.elapsed()),
    "N": lambda job, _: folded(job.nodes),
    "P": lambda job, _: job.partition,
    "R": _waits,
    "S": _start,
    "T": lambda job, _: job.shown,
    "a": lambda job, _: job.request.asked.account or "root",
    "e": _end,
    "i": lambda _, name: name,
    "j": lambda job, _: job.title,
    "l": lambda job, _: clock(int(job.limit_min * 60)),
    "o": lambda job, _: job.request.command or "(null)",
    "q": lambda job, _: job.request.asked.qos or "normal",
    "r": _reason,
    "t": lambda job, _: SHORT.get(job.shown, job.shown),
    "u": lambda *_: "root",
    "E": lambda job, _: job.request.asked.dependency or "(null)",
}
NAMES: Final[dict[str, Field]] = {
    "jobarrayid": LETTERS["i"],
    "jobid": LETTERS["A"],
    "arrayjobid": LETTERS["F"],
    "arraytaskid": LETTERS["K"],
    "state": LETTERS["T"],
    "reason": LETTERS["r"],
    "starttime": _start,
    "endtime": _end,
    "timeused": LETTERS["M"],
    "timelimit": LETTERS["l"],
    "nodelist": LETTERS["N"],
    "numcpus": LETTERS["C"],
    "partition": LETTERS["P"],
    "name": LETTERS["j"],
    "username": LETTERS["u"],
    "dependency": LETTERS["E"],
    "restartcnt": lambda job, _: str(job.restarts),
    "exit_code": lambda job, _: str((job.exit_code[0] << 8) + job.exit_code[1]),
}
HEADS: Final = {
    "i": "JOBID",
    "P": "PARTITION",
    "j": "NAME",
    "u": "USER",
    "t": "ST",
    "T": "STATE",
    "M": "TIME",
    "D": "NODES",
    "R": "NODELIST(REASON)",
    "r": "REASON",
    "N": "NODELIST",
    "C": "CPUS",
    "S": "START_TIME",
}
