"""Jobs that belong together: the tasks of an array, the parts of a heterogeneous job.

Each group has a job that stands for all of it: the mean of an array's tasks with the largest peak
of memory, the sum of the parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from hpcncf.explain.fields import LARGEST, ONE_TASK, JobFields

# `12_3` of Slurm, `12[3].server` of PBS, `12.3` of Grid Engine and HTCondor.
_TASK: Final = re.compile(r"(\d{1,12})(?:_\d{1,9}|\[\d{1,9}\]|\.\d{1,9})((?:\.[A-Za-z][\w-]*)*)")
_PART: Final = re.compile(r"(\d{1,12})\+\d{1,4}")
# How memory was counted that is no peak of a task: the largest of such figures is none either.
_NO_PEAK: Final = (ONE_TASK, "LSF", "mean", "virtual", "node")


@dataclass(frozen=True)
class JobGroup:
    kind: Literal["array", "het"]
    id: str
    members: tuple[JobFields, ...]
    """Those that the text has figures of, in its order."""
    whole: JobFields
    """Stands for all of it: the mean of an array's ended tasks, the sum of the parts."""


def group_jobs(jobs: Sequence[JobFields]) -> list[JobGroup]:
    """Return the arrays and heterogeneous jobs of which at least two members are known."""
    found: dict[tuple[Literal["array", "het"], str], list[JobFields]] = {}
    for job in jobs:
        if part := _PART.fullmatch(job.id):
            found.setdefault(("het", part[1]), []).append(job)
        elif (task := _TASK.fullmatch(job.id)) and not job.is_waiting:
            found.setdefault(("array", task[1] + task[2]), []).append(job)
    return [
        JobGroup(kind, name, tuple(own), (_sum if kind == "het" else _mean)(name, own))
        for (kind, name), own in found.items()
        if len(own) > 1
    ]


def _same(own: Sequence[JobFields], value: Callable[[JobFields], Any]) -> Any:
    """Return what all have in common; None where they differ."""
    first = value(own[0])
    return first if all(value(job) == first for job in own) else None


def _mean(name: str, own: Sequence[JobFields]) -> JobFields:
    """Return the mean of an array's tasks that have ended, or of all if none has."""
    ended = [job for job in own if not job.is_running] or list(own)
    whole = JobFields(
        source=ended[0].source,
        id=name,
        state=_same(ended, lambda job: job.state) or "",
        exit_code=_same(ended, lambda job: job.exit_code),
        jobs=len(ended),
        nodes=_same(ended, lambda job: job.nodes),
        tasks=_same(ended, lambda job: job.tasks),
        cores=_same(ended, lambda job: job.cores),
        limit_s=_same(ended, lambda job: job.limit_s),
        gpus=_same(ended, lambda job: job.gpus),
    )
    whole.elapsed_s = _average([job.elapsed_s for job in ended])
    whole.cpu_s = _average([job.cpu_s for job in ended])
    weights = [(job.elapsed_s or 0.0) * (job.cores or 1) for job in ended]
    whole.printed_efficiency = _weighted([job.efficiency for job in ended], weights)
    whole.gpu_efficiency = _weighted([job.gpu_efficiency for job in ended], weights)
    peaks = [job.memory_mib for job in ended if job.memory_mib is not None]
    if len(peaks) == len(ended):
        whole.memory_mib = max(peaks)
        counted = {job.memory_counted for job in ended}
        whole.memory_counted = next((how for how in _NO_PEAK if how in counted), LARGEST)
        whole.memory_asked_mib = _same(ended, lambda job: job.memory_asked_mib)
    lost = sum(job.lost_core_hours or 0.0 for job in own)
    whole.lost_core_hours = lost or None
    return whole


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _weighted(shares: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Return the mean share, each weighted; None if one is missing or no weight is known."""
    if any(share is None for share in shares) or not all(weights):
        return None
    return sum((share or 0) * weight for share, weight in zip(shares, weights, strict=True)) / sum(
        weights
    )


def _sum(name: str, own: Sequence[JobFields]) -> JobFields:
    """Return the cores and GPUs of a heterogeneous job, and what its parts used of them.

    Nodes and memory are not added up: they may differ from part to part.
    """
    whole = JobFields(source=own[0].source, id=name, state=_same(own, lambda job: job.state) or "")
    whole.exit_code = _same(own, lambda job: job.exit_code)
    whole.limit_s = _same(own, lambda job: job.limit_s)
    for field in ("cores", "cpu_s"):
        values = [getattr(job, field) for job in own]
        if None not in values:
            setattr(whole, field, sum(values))
    whole.gpus = sum(job.gpus or 0 for job in own) or None
    spans = [job.elapsed_s for job in own if job.elapsed_s is not None]
    whole.elapsed_s = max(spans) if len(spans) == len(own) else None
    return whole
