"""sacct's tables: default, `--long`, `--format=...`, as columns or with `--parsable`. Pure.

Source: the sacct manual. A job's row is followed by those of its steps (`123.batch`, `123.0`),
which alone know memory, and with `--long` CPU time, as the mean of their tasks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from hpcncf_analysis.explain import columns
from hpcncf_analysis.explain.amounts import mebibytes, number, seconds, whole
from hpcncf_analysis.explain.columns import Row
from hpcncf_analysis.explain.job import Job

ONLY_ENDED_SACCT: Final = (
    "sacct counts the CPU time of a running job's ended steps only, which is left out here"
)
NO_STEPS: Final = "sacct -X (--allocations) leaves the steps out, and with them CPU time and memory"
CPU_TIME: Final = "CPUTime is cores x elapsed, what was reserved and not what was used"
MEAN: Final = "CPU seconds are the steps' AveCPU x NTasks: --long has no TotalCPU"
TASKS: Final = "memory is the largest task's x the number of tasks, an upper bound"


def read_sacct(text: str) -> list[Job]:
    """One for every job or array element, in the order of its first row."""
    grouped: dict[str, list[Row]] = {}
    for row in columns.rows(text, _is_header_sacct):
        job_id = _id_sacct(row).partition(".")[0]
        if job_id[:1].isdecimal():
            grouped.setdefault(job_id, []).append(row)
    return [_job_sacct(job_id, rows) for job_id, rows in grouped.items()]


def _is_header_sacct(names: Sequence[str]) -> bool:
    return "State" in names and ("JobID" in names or "JobIDRaw" in names) and "CPUEff" not in names


def _id_sacct(row: Row) -> str:
    return row.get("JobID") or row.get("JobIDRaw", "")


def _job_sacct(job_id: str, rows: Sequence[Row]) -> Job:
    of_job = [row for row in rows if "." not in _id_sacct(row)]
    whole_job = of_job[-1] if of_job else {}  # `-D` shows every start of a requeued job
    steps = [row for row in rows if "." in _id_sacct(row)]
    cores, nodes = _cores_sacct(whole_job), _count(whole_job, "NNodes", "AllocNodes")
    cpu_s, how = _cpu(whole_job, steps)
    state = _state(whole_job, steps)
    at_work = state == "RUNNING"
    memory_mib, tasks = (None, 1) if at_work else _memory(steps)
    return Job(
        source="sacct",
        id=job_id,
        state=state,
        exit_code=_exit_sacct(whole_job.get("ExitCode", "")),
        nodes=nodes,
        cores=cores,
        elapsed_s=_elapsed(whole_job),
        limit_s=_limit(whole_job),
        cpu_s=None if at_work else cpu_s,
        memory_mib=memory_mib,
        memory_asked_mib=_asked(whole_job.get("ReqMem", ""), nodes, cores),
        notes=tuple(note for note in (how, tasks > 1 and TASKS, at_work and ONLY_ENDED_SACCT) if note),
    )


def _count(row: Row, *names: str) -> int | None:
    return next((value for name in names if (value := whole(row.get(name, "")))), None)


def _cores_sacct(row: Row) -> int | None:
    told = re.search(r"(?:^|,)cpu=(\d+)", row.get("AllocTRES", ""))
    return _count(row, "AllocCPUS", "NCPUS") or (whole(told[1]) if told else None)


def _state(row: Row, steps: Sequence[Row]) -> str:
    """A step that ran out of memory leaves its job FAILED, or even COMPLETED: the steps tell."""
    if any(step["State"].startswith("OUT_OF_ME") for step in steps):
        return "OUT_OF_MEMORY"
    words = (row or (steps[0] if steps else {})).get("State", "").split()
    word = words[0].rstrip("+") if words else ""
    return "OUT_OF_MEMORY" if word.startswith("OUT_OF_ME") else word


def _exit_sacct(text: str) -> int | None:
    """`1:0` is an exit code, `0:9` a signal, which a shell tells with 128 added."""
    code, _, signal = text.partition(":")
    number = whole(signal)
    return 128 + number if number else whole(code)


def _elapsed(row: Row) -> float | None:
    raw = number(row.get("ElapsedRaw", ""))
    return seconds(row.get("Elapsed", "")) if raw is None else raw


def _limit(row: Row) -> float | None:
    raw = number(row.get("TimelimitRaw", ""))
    return seconds(row.get("Timelimit", "")) if raw is None else 60 * raw


def _cpu(row: Row, steps: Sequence[Row]) -> tuple[float | None, str]:
    """CPU seconds, and what to know of them."""
    total = seconds(row.get("TotalCPU", ""))
    if total is None and any("TotalCPU" in step for step in steps):
        total = sum(seconds(step.get("TotalCPU", "")) or 0.0 for step in steps)
    if total is not None:
        return (total, "") if total or steps else (None, NO_STEPS)
    means = [_step_cpu(step) for step in steps]
    known = [mean for mean in means if mean is not None]
    if known:
        return sum(known), MEAN
    return None, CPU_TIME if "CPUTime" in row or "CPUTimeRAW" in row else ""


def _step_cpu(step: Row) -> float | None:
    mean, tasks = seconds(step.get("AveCPU", "")), whole(step.get("NTasks", ""))
    return None if mean is None or tasks is None else mean * tasks


def _memory(steps: Sequence[Row]) -> tuple[float | None, int]:
    """Of the step with the most, all its tasks together; and how many those are."""
    told = [
        (largest, whole(step.get("NTasks", "")) or 1)
        for step in steps
        if (largest := mebibytes(step.get("MaxRSS", "")))
    ]
    most = max(told, key=lambda each: each[0] * each[1], default=None)
    return (most[0] * most[1], most[1]) if most else (None, 1)


def _asked(text: str, nodes: int | None, cores: int | None) -> float | None:
    """For the whole job: until Slurm 21.08 sacct wrote `4Gn` per node, `4Gc` per core."""
    per = {"n": nodes, "c": cores}.get(text[-1:], 1)
    amount = mebibytes(text.rstrip("nc"))
    return amount * per if amount and per else None
