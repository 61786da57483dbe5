"""JSON of schedulers, rewritten as the text that the same scheduler prints without `--json`.

`sacct --json`, `squeue --json`, `qstat -f -F json`, `condor_history -json` and `bjobs -json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_MARKS: Final = ('"jobs"', '"Jobs"', '"ClusterId"', '"RECORDS"')
_BEGIN: Final = re.compile(r"^[ \t]*[{\[]", re.MULTILINE)
MOST_STARTS: Final = 5
MOST_CHARACTERS: Final = 4_000_000
_COLUMNS: Final = (
    *("JobID", "State", "AllocCPUS", "NNodes", "NTasks", "Elapsed", "TotalCPU", "Timelimit"),
    *("ReqMem", "MaxRSS", "AllocTRES", "ExitCode"),
)


def rewrite_json(text: str) -> str:
    """Return the text with the first JSON of a scheduler in it rewritten as plain lines."""
    if len(text) > MOST_CHARACTERS or not any(mark in text for mark in _MARKS):
        return text
    decoder = json.JSONDecoder()
    for number, begin in enumerate(_BEGIN.finditer(text)):
        if number == MOST_STARTS:
            break
        try:
            value, end = decoder.raw_decode(text, begin.end() - 1)
        except (ValueError, RecursionError):
            continue
        if lines := list(_lines(value)):
            return "\n".join([text[: begin.start()], *lines, text[end:]])
    return text


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from _classads(value)
    elif isinstance(value, dict):
        if isinstance(value.get("jobs"), list):
            yield from _slurm(value["jobs"])
        elif isinstance(value.get("Jobs"), dict):
            yield from _pbs(value["Jobs"])
        elif isinstance(value.get("RECORDS"), list):
            yield from _lsf(value["RECORDS"])


def _plain(value: object) -> str:
    """Return a number or word as text, without what would part cells; empty for others."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return re.sub(r"[|\s]+", " ", str(value)[:200])


# Slurm (data_parser plugin v0.0.40): a number that may be unset is an object.


def _at(value: object, *keys: str) -> Any:
    """Return what is at a path of keys; None where one is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _number(value: object) -> str:
    if isinstance(value, dict):
        return _plain(value.get("number")) if value.get("set", True) else ""
    return _plain(value)


def _state(value: object) -> str:
    current = value.get("current") if isinstance(value, dict) else value
    return _plain(current[0] if isinstance(current, list) and current else current)


def _exit(value: object) -> str:
    code = _number(_at(value, "return_code")) or "0"
    return f"{code}:{_number(_at(value, 'signal', 'id')) or 0}"


def _tres(value: object) -> str:
    counts = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    parts = []
    for each in counts:
        kind, name, count = (_plain(each.get(key)) for key in ("type", "name", "count"))
        unit = "M" if kind == "mem" else ""
        parts.append(f"{kind}{f'/{name}' if name else ''}={count}{unit}")
    return ",".join(parts)


def _seconds(time: object, key: str) -> str:
    """Return `total`, `user` or `system` of a job's times in seconds."""
    whole, part = _number(_at(time, key, "seconds")), _number(_at(time, key, "microseconds"))
    return f"{whole}.{int(part or 0):06d}" if whole.isdecimal() and part.isdecimal() else whole


def _slurm(jobs: Sequence[object]) -> Iterator[str]:
    own = [job for job in jobs if isinstance(job, dict) and "job_id" in job]
    if own:
        yield "|".join(_COLUMNS)
    for job in own:
        name = _number(job["job_id"])
        array = _number(_at(job, "array", "job_id") or job.get("array_job_id"))
        task = _at(job, "array", "task_id") or job.get("array_task_id")
        if array not in ("", "0") and _number(task):
            name = f"{array}_{_number(task)}"
        whole, part = _number(_at(job, "het", "job_id")), _number(_at(job, "het", "job_offset"))
        if whole not in ("", "0"):
            name = f"{whole}+{part or 0}"
        asked, each = _number(_at(job, "required", "memory_per_node")), "n"
        if asked in ("", "0"):
            asked, each = _number(_at(job, "required", "memory_per_cpu")), "c"
        limit = _number(_at(job, "time", "limit") or job.get("time_limit"))
        tres = _tres(_at(job, "tres", "allocated")) or _plain(job.get("tres_alloc_str"))
        yield _row(
            JobID=name,
            State=_state(job.get("state") or job.get("job_state")),
            AllocCPUS=_number(_at(job, "required", "CPUs")) if "cpu=" not in tres else "",
            NNodes=_number(job.get("allocation_nodes") or job.get("node_count")),
            Elapsed=_number(_at(job, "time", "elapsed")),
            TotalCPU=_seconds(job.get("time"), "total"),
            Timelimit=f"{limit} min" if limit else "",
            ReqMem=f"{asked}M{each}" if asked not in ("", "0") else "",
            AllocTRES=tres,
            ExitCode=_exit(job.get("exit_code")),
        )
        steps = job.get("steps")
        for step in steps if isinstance(steps, list) else ():
            yield _step(name, step)


def _step(job: str, step: object) -> str:
    told = _at(step, "step", "id")
    last = told.get("step_id") if isinstance(told, dict) else str(told).rpartition(".")[2]
    peaks = _at(step, "tres", "requested", "max")
    held = [
        _number(each.get("count"))
        for each in (peaks if isinstance(peaks, list) else ())
        if isinstance(each, dict) and each.get("type") == "mem"
    ]
    return _row(
        JobID=f"{job}.{_plain(last)}",
        State=_state(_at(step, "state")),
        NTasks=_number(_at(step, "tasks", "count")),
        Elapsed=_number(_at(step, "time", "elapsed")),
        TotalCPU=_seconds(_at(step, "time"), "total"),
        MaxRSS=next(iter(held), ""),
        ExitCode=_exit(_at(step, "exit_code")),
    )


def _row(**cells: str) -> str:
    return "|".join(cells.get(column, "") for column in _COLUMNS)


# The others.


def _pbs(jobs: Mapping[str, object]) -> Iterator[str]:
    for name, job in jobs.items():
        if not isinstance(job, dict):
            continue
        yield f"Job Id: {_plain(name)}"
        for key, value in job.items():
            if isinstance(value, dict):
                yield from (f"    {key}.{inner} = {_plain(each)}" for inner, each in value.items())
            else:
                yield f"    {key} = {_plain(value)}"
        yield ""


def _classads(ads: Sequence[object]) -> Iterator[str]:
    for ad in ads:
        if isinstance(ad, dict) and "ClusterId" in ad:
            yield from (f"{key} = {_plain(value)}" for key, value in ad.items())
            yield ""


def _lsf(records: Sequence[object]) -> Iterator[str]:
    rows = [each for each in records if isinstance(each, dict) and "JOBID" in each]
    heads = list(dict.fromkeys(key for row in rows for key in row))
    if rows and len(heads) > 1:
        yield "|".join(_plain(head) for head in heads)
        yield from ("|".join(_plain(row.get(head, "")) for head in heads) for row in rows)
