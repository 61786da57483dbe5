"""Past jobs grouped into workloads by name and shape, and what to request for each next.

`conclude` judges each job, so that a table and `explain JOBID` follow the same rules; a workload
keeps sums and extremes of what it said. Its size does not depend on the number of jobs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, Final

from hpcncf.explain.conclude import (
    AT_LIMIT,
    BRIEF_S,
    ENOUGH_RUNS,
    HARDLY,
    IMPOSSIBLE,
    LEAST_MARGIN_S,
    LEAST_REQUEST_MIB,
    MODEST,
    ROOM,
    TIME_MARGIN,
    Explanation,
    NextRequest,
    conclude,
    is_short,
    may_be_several_nodes,
    memory_is_counted,
)
from hpcncf.explain.fields import ONE_TASK, OUT_OF_MEMORY, OUT_OF_TIME, JobFields
from hpcncf.explain.words import format_memory
from hpcncf.text import format_duration, pluralize

NODE_FAILED: Final = frozenset(("NODE_FAIL", "BOOT_FAIL"))
# Random names, one for each job, must not fill the memory; a table of so many helps nobody.
MOST_WORKLOADS: Final = 5_000
OTHERS: Final = "(further names)"
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)*(?:e[+-]?\d+)?")
# A figure of these kinds is no peak of the job, or not all of it.
NO_PEAKS: Final = (ONE_TASK, "LSF", "mean", "virtual", "node")
# A limit is rounded up to whole five minutes.
LIMIT_STEP_S: Final = 300.0


@dataclass(frozen=True)
class PastJob:
    """One job of the scheduler's accounting; a heterogeneous one has several parts."""

    name: str
    parts: tuple[JobFields, ...]


@dataclass(frozen=True)
class JobShape:
    """Resources of each part of a job."""

    nodes: int | None
    cores: int | None
    gpus: int | None


@dataclass
class Extreme:
    """Count and largest value of a figure over many jobs."""

    count: int = 0
    largest: float = 0.0

    def see(self, value: float) -> None:
        self.count += 1
        self.largest = max(self.largest, value)


@dataclass
class Workload:
    """Sums and extremes of the jobs of one name and shape."""

    pattern: str
    shape: tuple[JobShape, ...]
    first_name: str
    last_job: str = ""
    runs: int = 0
    states: Counter[str] = field(default_factory=Counter)
    core_hours: float = 0.0
    core_hours_idle: float = 0.0
    uncounted: int = 0
    """Runs whose CPU time was not counted, or cannot be right."""
    counted_s: float = 0.0
    """Run time of the others together."""
    cpu_s: float = 0.0
    cores_used: Extreme = field(default_factory=Extreme)
    """Mean number of busy cores, of completed runs that were long enough to judge and counted."""
    memory: Extreme = field(default_factory=Extreme)
    """Peaks that can be believed."""
    memory_runs: int = 0
    """Completed runs that have such a peak."""
    memory_at_limit: int = 0
    memory_asked_mib: float | None = None
    """Of the last run."""
    out_of_memory: Extreme = field(default_factory=Extreme)
    """What runs had that were killed for their memory."""
    longest_s: float = 0.0
    limit_s: float | None = None
    """Of the last run."""
    out_of_time: Extreme = field(default_factory=Extreme)
    """Busy cores of runs that reached their limit."""
    limit_reached_s: float = 0.0
    """The longest limit that they had."""
    hung: int = 0
    """Runs that reached their limit and did hardly any work, or whose work was not counted."""
    gpu_idle: int = 0

    @property
    def name(self) -> str:
        return self.first_name or self.pattern

    @property
    def completed(self) -> int:
        return self.states["COMPLETED"]

    @property
    def cores(self) -> int | None:
        known = [part.cores for part in self.shape if part.cores]
        return sum(known) if len(known) == len(self.shape) else None

    @property
    def mean_cores_used(self) -> float | None:
        return self.cpu_s / self.counted_s if self.counted_s else None

    def see(self, job: PastJob) -> None:
        """Add a job that has ended to the sums; parts of a heterogeneous job run side by side."""
        self.runs += 1
        self.last_job = job.parts[0].id
        if job.name != self.first_name:
            self.first_name = ""
        state = next((each.state for each in job.parts if not each.is_completed), "")
        self.states[state or job.parts[0].state or "unknown"] += 1
        said = [conclude(part) for part in job.parts]
        if all(map(_cpu_is_counted, job.parts)):
            self._see_cpu(job)
        else:
            self.uncounted += 1
        self.core_hours += (
            sum((each.cores or 0) * (each.elapsed_s or 0) for each in job.parts) / 3600
        )
        if len(job.parts) == 1:
            self._see_part(said[0])

    def _see_cpu(self, job: PastJob) -> None:
        elapsed_s = max(each.elapsed_s or 0.0 for each in job.parts)
        cpu_s = sum(each.cpu_s or 0.0 for each in job.parts)
        self.counted_s += elapsed_s
        self.cpu_s += cpu_s
        self.core_hours_idle += sum(each.core_hours_idle or 0.0 for each in job.parts)
        if all(each.is_completed and not is_short(each) for each in job.parts):
            self.cores_used.see(cpu_s / elapsed_s)

    def _see_part(self, said: Explanation) -> None:
        job, codes = said.job, set(said.codes)
        self.memory_asked_mib = job.memory_asked_mib or self.memory_asked_mib
        self.limit_s = job.limit_s or self.limit_s
        self.gpu_idle += "gpu_idle" in codes
        if job.state in OUT_OF_TIME:
            if codes & {"almost_idle", "gpu_idle"} or not _cpu_is_counted(job):
                self.hung += 1
            else:
                self.limit_reached_s = max(self.limit_reached_s, job.limit_s or 0.0)
                self.out_of_time.see(job.cores_used or 0.0)
        else:  # one that failed shows as well how long a run may take
            self.longest_s = max(self.longest_s, job.elapsed_s or 0.0)
        if job.state in OUT_OF_MEMORY:
            self.out_of_memory.see(job.memory_asked_mib or 0.0)
            return
        share = job.memory_efficiency or 0.0
        # More than the cgroup allows cannot have been: pages were counted twice.
        if not memory_is_counted(job) or share > IMPOSSIBLE or job.memory_counted in NO_PEAKS:
            self.memory_at_limit += share > IMPOSSIBLE
            return
        self.memory.see(job.memory_mib or 0.0)
        self.memory_at_limit += share >= AT_LIMIT
        self.memory_runs += job.is_completed and (job.elapsed_s or 0.0) >= BRIEF_S

    # What to request.

    def advice(self) -> WorkloadAdvice:
        """Size the next request from the runs; nothing from fewer than three completed ones."""
        notes = [*self._losses(), *self._gpu_notes()]
        enough = self.cores_used.count
        if enough < ENOUGH_RUNS:
            why = f"not enough evidence: {enough} of {ENOUGH_RUNS} completed runs"
            if self.completed > enough:
                other = pluralize(self.completed - enough, "run")
                notes.append(f"{other} shorter than a minute, or without CPU time: not judged")
            return WorkloadAdvice(NextRequest(), why, tuple(notes))
        if len(self.shape) > 1:
            why = f"parts of a heterogeneous job are not sized: hpcncf explain {self.last_job}"
            return WorkloadAdvice(NextRequest(), "", (why, *notes))
        memory, no_memory = self._memory()
        limit, no_limit = self._limit()
        notes = [each for each in (no_memory, no_limit, self._cores_note()) if each] + notes
        return WorkloadAdvice(NextRequest(memory_mib=memory, limit_s=limit), "", tuple(notes))

    def _memory(self) -> tuple[float | None, str]:
        asked, peak = self.memory_asked_mib, self.memory.largest
        killed = self.out_of_memory
        if self._may_have_several_nodes():
            return None, "memory: how it is spread over nodes is not known"
        if killed.count and asked and killed.largest >= asked:
            size = ceil(1.5 * killed.largest / 1024) * 1024.0
            text = f"memory: {pluralize(killed.count, 'run')} killed at {format_memory(asked)}"
            return size, f"{text}: half as much again"
        if self.memory_at_limit:
            return (
                None,
                "memory: at its limit or above in a run, which is no proof of need: keep it",
            )
        if self.memory_runs < ENOUGH_RUNS:
            text = f"memory: counted in {self.memory_runs} completed runs of five minutes or more"
            return None, f"{text}, {ENOUGH_RUNS} are needed"
        size = max(ceil(ROOM * peak / 1024) * 1024.0, LEAST_REQUEST_MIB)
        if killed.count:
            size = max(size, ceil(1.5 * killed.largest / 1024) * 1024.0)
        if not asked or peak >= MODEST * asked or size >= asked:
            return None, ""
        text = f"memory: {format_memory(peak)} at most in {pluralize(self.memory.count, 'run')}"
        return size, f"{text}, a quarter more"

    def _may_have_several_nodes(self) -> bool:
        (part,) = self.shape
        return may_be_several_nodes(JobFields(nodes=part.nodes, cores=part.cores))

    def _limit(self) -> tuple[float | None, str]:
        reached, limit = self.out_of_time, self.limit_s
        if reached.count or self.hung:
            ended = pluralize(reached.count + self.hung, "run")
            text = f"time: {ended} reached the limit"
            typical = self.cores_used.largest
            if not reached.count or reached.largest < HARDLY * typical:
                return None, f"{text} and hardly worked: more time would not help, find out why"
            if not limit or self.limit_reached_s < limit:
                return None, f"{text} of before: keep today's"
            return 2 * self.limit_reached_s, f"{text} at work: twice as much, or save and resume"
        needed = max(self.longest_s * (1 + TIME_MARGIN), self.longest_s + LEAST_MARGIN_S)
        needed = ceil(needed / LIMIT_STEP_S) * LIMIT_STEP_S
        if not limit or needed >= MODEST * limit:
            return None, ""
        longest = format_duration(self.longest_s)
        text = f"time: the longest of {pluralize(self.runs, 'run')} took {longest}, half more"
        return needed, text

    def _cores_note(self) -> str:
        used, cores = self.cores_used, self.cores
        if not cores or used.largest >= MODEST * cores:
            return ""
        return (
            f"cores: {used.largest:.2f} of {cores} busy at most, on average of a run; a mean does "
            "not show whether fewer are as fast: hpcncf sbatch shows the cause"
        )

    def _losses(self) -> list[str]:
        ends = {
            **dict.fromkeys(OUT_OF_MEMORY, "killed for memory"),
            **dict.fromkeys(OUT_OF_TIME, "at the time limit"),
        }
        lost: Counter[str] = Counter()
        for state, count in self.states.items():
            if state != "COMPLETED":
                lost[ends.get(state, state.lower().replace("_", " "))] += count
        if not lost:
            return []
        parts = ", ".join(f"{count:,} {what}" for what, count in lost.most_common())
        return [f"{lost.total():,} of {pluralize(self.runs, 'run')} did not complete: {parts}"]

    def _gpu_notes(self) -> list[str]:
        if not self.gpu_idle:
            return []
        return [f"the GPU was not used in {pluralize(self.gpu_idle, 'run')}"]

    def plain(self) -> dict[str, Any]:
        """Return the figures and the advice as a dictionary for JSON."""
        advice = self.advice()
        memory = self.memory.largest if self.memory.count else None
        return {
            "name": self.name,
            "shape": [asdict(each) for each in self.shape],
            "last_job": self.last_job,
            "runs": self.runs,
            "states": dict(self.states),
            "runs_uncounted": self.uncounted,
            "core_hours": self.core_hours,
            "core_hours_idle": self.core_hours_idle,
            "cores_used_mean": self.mean_cores_used,
            "cores_used_max": self.cores_used.largest if self.cores_used.count else None,
            "memory_mib_max": memory,
            "memory_asked_mib": self.memory_asked_mib,
            "elapsed_s_max": self.longest_s,
            "limit_s": self.limit_s,
            "request": asdict(advice.request),
            "not_enough": advice.not_enough or None,
            "notes": list(advice.notes),
        }


@dataclass(frozen=True)
class WorkloadAdvice:
    """Next request for a workload, and the reason."""

    request: NextRequest
    not_enough: str
    """Why nothing can be said; empty if something can."""
    notes: tuple[str, ...]


def _cpu_is_counted(job: JobFields) -> bool:
    """Return whether the job's CPU time was counted; a job that ran used some."""
    share = job.efficiency
    return bool(job.cpu_s and job.elapsed_s and share is not None and share <= IMPOSSIBLE)


@dataclass
class Workloads:
    """The workloads of all jobs that were seen, and how many jobs were left out."""

    all: dict[tuple[object, ...], Workload] = field(default_factory=dict)
    running: int = 0
    node_failed: int = 0

    def see(self, job: PastJob) -> None:
        """Add a job; one that has not run or not ended, or whose node failed, is left out."""
        states = {each.state for each in job.parts}
        if states & NODE_FAILED:
            self.node_failed += 1
            return
        if any(each.is_running for each in job.parts):
            self.running += 1
            return
        if not any(each.elapsed_s for each in job.parts) or any(x.is_waiting for x in job.parts):
            return
        shape = tuple(JobShape(each.nodes, each.cores, each.gpus) for each in job.parts)
        pattern = _NUMBERS.sub("*", job.name)
        workload = self.all.get((pattern, shape))
        if workload is None:
            if len(self.all) >= MOST_WORKLOADS:
                pattern = OTHERS
            new = Workload(pattern, shape, "" if pattern == OTHERS else job.name)
            workload = self.all.setdefault((pattern, shape), new)
        workload.see(job)

    def most_wasteful_first(self) -> list[Workload]:
        return sorted(self.all.values(), key=lambda each: (-each.core_hours_idle, each.name))

    @property
    def runs(self) -> int:
        return sum(each.runs for each in self.all.values())

    @property
    def core_hours(self) -> float:
        return sum(each.core_hours for each in self.all.values())

    @property
    def core_hours_idle(self) -> float:
        return sum(each.core_hours_idle for each in self.all.values())

    @property
    def uncounted(self) -> int:
        return sum(each.uncounted for each in self.all.values())


def group(jobs: Iterable[PastJob]) -> Workloads:
    """Group jobs into workloads, one at a time."""
    found = Workloads()
    for job in jobs:
        found.see(job)
    return found
