"""reportseff's table. Pure.

Source: reportseff's README (its columns since 1.0: JobID, State, Elapsed, TimeEff, CPUEff, MemEff;
before that Name, State, Time, CPU, Memory); `---` where it does not know. `--format` may add
sacct's columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hpcncf_analysis.explain import columns
from hpcncf_analysis.explain.amounts import mebibytes, seconds, share, whole
from hpcncf_analysis.explain.job import Job

BEFORE: Final = ["Name", "State", "Time", "CPU", "Memory"]
_NOW: Final = dict(zip(BEFORE, ("JobID", "State", "Elapsed", "CPUEff", "MemEff"), strict=True))


def read_reportseff(text: str) -> list[Job]:
    return [_job_reportseff(row) for row in columns.rows(text, _is_header) if any(map(str.isdigit, _id(row)))]


def _is_header(names: Sequence[str]) -> bool:
    return list(names) == BEFORE or ("CPUEff" in names and "JobID" in names)


def _id(row: columns.Row) -> str:
    return row.get("JobID") or row.get("Name", "")


def _job_reportseff(row: columns.Row) -> Job:
    told = {_NOW.get(name, name): cell for name, cell in row.items()}
    state = told.get("State", "").split()
    return Job(
        source="reportseff",
        id=told["JobID"],
        state=state[0].rstrip("+") if state else "",
        nodes=whole(told.get("NNodes", "")),
        cores=whole(told.get("AllocCPUS", "") or told.get("NCPUS", "")),
        elapsed_s=seconds(told.get("Elapsed", "")),
        limit_s=seconds(told.get("Timelimit", "")),
        told_efficiency=share(told.get("CPUEff", "")),
        memory_asked_mib=mebibytes(told.get("ReqMem", "")),
        told_memory_efficiency=share(told.get("MemEff", "")),
        told_time_efficiency=share(told.get("TimeEff", "")),
    )
