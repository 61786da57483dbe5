"""What follows from a job's fields, what stays open, and the next step. Reads no text.

One rule holds throughout: nothing is sized from a figure that was not counted, cannot be right, or
is of a run that did not come to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Final, Literal

from hpcncf.explain.fields import LARGEST, ONE_TASK, OUT_OF_MEMORY, OUT_OF_TIME, JobFields
from hpcncf.explain.words import (
    THIN,
    describe_exit_code,
    describe_signal,
    format_core_hours,
    format_memory,
    format_share,
)
from hpcncf.text import format_duration, pluralize

# Below this a job's start says more than its work, and memory was sampled once or never.
SHORT_S: Final = 60.0
# Below this its start still counts (jobstats judges no job under 300 s).
BRIEF_S: Final = 300.0
# From here to here as much as one core was busy, start-up and pauses included.
ONE: Final = (0.85, 1.15)
BUSY: Final = 0.9
HARDLY: Final = 0.5
# This close to a whole number of cores is called exact: the figures have two digits.
EXACT: Final = 0.02
# More CPU time than this share of what the cores can give is no rounding.
IMPOSSIBLE: Final = 1.05
# A Python process that has imported torch takes more than this; a smaller peak is of the batch
# shell, or the program was never sampled.
LEAST_MIB: Final = 250.0
# What a request needs above the peak that was seen, and the least that is ever named.
ROOM: Final = 1.25
LEAST_REQUEST_MIB: Final = 1024.0
# What a time limit needs above the longest run, and at least: a run that it ends is lost work; a
# limit that is too long waits in the queue.
TIME_MARGIN: Final = 0.5
LEAST_MARGIN_S: Final = 120.0
# One run does not show how long the longest takes, or how much memory the largest needs.
ENOUGH_RUNS: Final = 3
# More memory or time than this share of what was requested is no waste worth a word.
MODEST: Final = 0.5
# With more cores than this a job has several nodes, whether the text says so or not.
LARGEST_NODE: Final = 128
AT_LIMIT: Final = 0.95
GPU_IDLE: Final = 0.005
GPU_BUSY: Final = 0.5

SLURM: Final = frozenset(
    (
        "sacct",
        "sstat",
        "seff",
        "nn_seff",
        "seff-array",
        "reportseff",
        "jobstats",
        "NAU jobstats",
        "slurm-mail",
        "squeue",
        "log",
    )
)
FIELDS: Final = (
    "JobID,State,NNodes,AllocCPUS,AllocTRES,Elapsed,Timelimit,TotalCPU,NTasks,MaxRSS,ReqMem,"
    "TRESUsageInAve,ExitCode"
)


@dataclass(frozen=True)
class Conclusion:
    code: str
    """Stable, for programs: `one_core`, `gpu_idle`, `too_short`."""
    text: str


@dataclass(frozen=True)
class NextRequest:
    """Next request; None where today's request has no known fault."""

    nodes: int | None = None
    cores: int | None = None
    memory_mib: float | None = None
    limit_s: float | None = None


@dataclass(frozen=True)
class Explanation:
    job: JobFields
    conclusions: tuple[Conclusion, ...]
    open_questions: tuple[str, ...]
    """What these figures cannot show."""
    request: NextRequest
    next_step: str
    """A command; empty if there is nothing to do."""
    why: str
    """What that command brings."""
    confidence: Literal["high", "medium", "low", "none"]
    confidence_reason: str

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(each.code for each in self.conclusions)

    def plain(self) -> dict[str, Any]:
        return {
            "fields": self.job.plain(),
            "conclusions": [asdict(each) for each in self.conclusions],
            "open_questions": list(self.open_questions),
            "request": asdict(self.request),
            "next_step": self.next_step,
            "why": self.why,
            "confidence": self.confidence,
            "confidence_reason": self.confidence_reason,
        }


def conclude(job: JobFields) -> Explanation:
    if job.is_waiting:
        said = [Conclusion("not_started", "It has not started: there is nothing to judge yet.")]
        return _explanation(job, said, [], NextRequest())
    said = [each for rule in _rules(job) for each in rule(job)]
    codes = {each.code for each in said}
    return _explanation(job, said, _open(job, codes), _request(job, codes))


def _time_text(seconds: float) -> str:
    return format_duration(seconds, THIN)


def _rules(job: JobFields) -> Sequence[Callable[[JobFields], list[Conclusion]]]:
    if is_short(job):
        return (_short, _end, _attempts)
    return (_cpu, _nodes, _threads, _gpu, _memory, _time, _end, _attempts, _progress)


def is_short(job: JobFields) -> bool:
    """Return whether the job ran for too short a time to judge its efficiency."""
    return job.elapsed_s is not None and job.elapsed_s < SHORT_S


def _short(job: JobFields) -> list[Conclusion]:
    ran = "has run for" if job.is_running else "ran for"
    text = (
        f"Too short to judge: it {ran} {_time_text(job.elapsed_s or 0)}. Start-up counts as "
        "much as the work, and schedulers sample memory only now and then (Slurm every 30 s): "
        "nothing follows for the next request."
    )
    return [Conclusion("too_short", text)]


# Cores.


def _cpu(job: JobFields) -> list[Conclusion]:
    used, cores, efficiency = job.cores_used, job.cores, job.efficiency
    if efficiency is None and used is None:
        return []
    if cores is None or efficiency is None or used is None:
        return [_cpu_alone(job)]
    were = "cores were" if cores > 1 else "core was"
    text = f"On average {used:.2f} of {cores} {were} busy ({format_share(efficiency)})"
    if efficiency > IMPOSSIBLE:
        return [
            Conclusion(
                "cpu_impossible",
                f"{text}, which is more CPU time than {pluralize(cores, 'core')} can give. Either "
                "nothing held the job to its cores (no binding, no cgroup, processes on further "
                "nodes), or a figure is wrong (hardware threads against cores, processes counted "
                "twice): nothing is sized from it.",
            )
        ]
    code, meaning = _pattern(job, used, cores)
    said = [Conclusion(code, f"{text}{meaning}.{_idle(job)}"), *_peak(job)]
    if _disagrees(job, efficiency):
        printed = format_share(job.printed_efficiency or 0)
        text = (
            f"The text has a CPU efficiency of {printed}, which is not its CPU time over run time "
            "and cores: one of the figures is of something else, and nothing is sized from them."
        )
        said.append(Conclusion("figures_disagree", text))
    return said


def _disagrees(job: JobFields, efficiency: float) -> bool:
    """Return whether the printed CPU efficiency contradicts the other figures."""
    printed = job.printed_efficiency
    return printed is not None and abs(printed - efficiency) > max(0.15 * efficiency, 0.03)


def _idle(job: JobFields) -> str:
    idle = job.core_hours_idle
    threads_idle = job.physical_cores and job.cores and (job.cores_used or 0) <= job.physical_cores
    if not idle or job.is_running or threads_idle or (job.efficiency or 0) >= BUSY:
        return ""
    each = ", on average by each" if job.jobs else ""
    return f" {format_core_hours(idle)} were reserved and not used{each}."


def _cpu_alone(job: JobFields) -> Conclusion:
    """Conclude from CPU efficiency alone, or from cores used alone.

    One of the two numbers is missing: the cores of the job, or how many were busy.
    """
    if job.efficiency is None:
        busy = f"On average {job.cores_used or 0:.2f} cores were busy"
        return Conclusion("cores_unknown", f"{busy}; of how many, the text does not say.")
    share = format_share(job.efficiency)
    if job.efficiency > IMPOSSIBLE:
        return Conclusion(
            "cpu_impossible",
            f"A CPU efficiency of {share} is more than the cores can give, or is counted per core: "
            "nothing is sized from it.",
        )
    likely = round(1 / job.efficiency) if job.efficiency > 0 else 0
    if 3 <= likely <= 256 and abs(job.efficiency * likely - 1) <= EXACT:
        busy = "one core" if _kept_to_one(job, likely) else "one core's worth of work"
        return Conclusion(
            "share_of_one_core", f"On average {share} of the cores were busy: of {likely}, {busy}."
        )
    code = "cores_busy" if job.efficiency >= BUSY else "share_only"
    return Conclusion(code, f"On average {share} of the cores were busy.")


def _pattern(job: JobFields, used: float, cores: int) -> tuple[str, str]:
    """Classify the number of busy cores: return a code, and a clause for the report."""
    nodes = job.nodes or 1
    if used >= BUSY * cores:
        return "cores_busy", ""
    if cores > 1 and ONE[0] <= used <= ONE[1]:
        near = "exactly" if abs(used - 1) <= EXACT else "about"
        worth = "one core" if _kept_to_one(job, cores) else "one core's worth of work"
        return "one_core", f": {near} {worth}"
    if hardly_worked(job):
        return "almost_idle", (
            ": hardly any work. It waited (for files, the network, a GPU), or its work ran in "
            "processes that were not counted"
        )
    if nodes > 1 and abs(used * nodes / cores - 1) <= EXACT:
        return "one_node", f": as many as one of its {nodes} nodes has"
    if job.nodes_unused:
        return "some_idle", ""
    if cores % 2 == 0 and abs(used - cores / 2) <= EXACT * cores:
        if job.physical_cores == cores / 2:
            return "half_of_cores", ": one thread on each physical core"
        return "half_of_cores", (
            ": half of them. Where the scheduler counts hardware threads, that is one busy thread "
            "on each core"
        )
    if cores == 1:
        return "some_idle", ". The rest of the time it waited (for files, the network, a GPU)"
    return "some_idle", ". Some of them idled all the time, or all of them some of the time"


def hardly_worked(job: JobFields) -> bool:
    """Return whether so little CPU time was counted that the job waited, or ran uncounted."""
    used = job.cores_used
    return used is not None and used < (HARDLY if (job.cores or 1) > 1 else 0.1)


def _kept_to_one(job: JobFields, cores: int) -> bool:
    """Return whether the job never used a second core, by its peak efficiency.

    Only LSF reports the peak.
    """
    return job.peak_efficiency is not None and job.peak_efficiency * cores <= ONE[1]


def _peak(job: JobFields) -> list[Conclusion]:
    if job.peak_efficiency is None or not job.cores:
        return []
    most = job.peak_efficiency * job.cores
    lasted = _time_text(job.peak_s) if job.peak_s else "about 60 s"
    text = f"At its busiest {most:.2f} cores ({format_share(job.peak_efficiency)}, over {lasted})"
    alone = job.cores > 1 and _kept_to_one(job, job.cores)
    if alone:
        return [Conclusion("never_a_second_core", f"{text}: never a second core.")]
    return [Conclusion("peak", f"{text}.")]


def _nodes(job: JobFields) -> list[Conclusion]:
    if job.nodes_unused:
        return [Conclusion("nodes_unused", _unused_nodes(job, job.nodes_unused))]
    nodes, used, cores = job.nodes or 1, job.cores_used, job.cores
    if nodes < 2 or used is None or not cores or used * nodes > 1.05 * cores:
        return []
    if job.nodes_unused == 0:  # each was watched, and each worked
        if job.gpus:
            return []
        text = f"All {nodes} nodes worked, with no more busy cores together than one of them has."
        return [Conclusion("fewer_nodes_would_do", text)]
    others = "the other node" if nodes == 2 else f"the other {nodes - 1} nodes"
    return [
        Conclusion(
            "more_nodes_than_used",
            f"No more cores were busy than one of its {nodes} nodes has: {others} idled, or what "
            "ran there was started past the scheduler's accounting (by ssh, or by an mpirun that "
            "does not know the scheduler).",
        )
    ]


def _unused_nodes(job: JobFields, unused: int) -> str:
    if not job.nodes or unused >= job.nodes:
        return f"{pluralize(unused, 'node')} used no CPU at all."
    text = f"{unused} of {pluralize(job.nodes, 'node')} used no CPU at all"
    share = job.efficiency
    if share is None:
        return f"{text}."
    others = format_share(share * job.nodes / (job.nodes - unused))
    return f"{text}; {others} of the other cores were busy."


def _threads(job: JobFields) -> list[Conclusion]:
    if not job.physical_cores or not job.cores or job.cores <= job.physical_cores:
        return []
    return [
        Conclusion(
            "hardware_threads",
            f"The {job.cores} cores are hardware threads of {job.physical_cores} cores: a program "
            "with one thread per core shows 50 %.",
        )
    ]


# GPUs.


def _gpu(job: JobFields) -> list[Conclusion]:
    share, gpus = job.gpu_efficiency, job.gpus
    if share is None and not gpus and not job.gpus_unused:
        return []
    so_far = " so far" if job.is_running else ""
    if share is not None and share < GPU_IDLE:
        which = "The GPU was" if gpus in (None, 1) else f"The {gpus} GPUs were"
        them = "it" if gpus in (None, 1) else "them"
        text = f"{which} not used{so_far} (0 %): does the program move its model and batches to "
        text += f"{them}?"
        return [Conclusion("gpu_idle", text)]
    if job.gpus_unused:
        of = f" of {gpus}" if gpus else ""
        unused = "all_gpus" if gpus and job.gpus_unused >= gpus else "some_gpus"
        code = "gpu_idle" if unused == "all_gpus" else "some_gpus_idle"
        text = f"{pluralize(job.gpus_unused, 'GPU')}{of} not used{so_far}."
        if code == "some_gpus_idle":
            text += " Does the program use more than one (ranks, torchrun)?"
        return [Conclusion(code, text), *([_gpu_share(job, share)] if share is not None else [])]
    if share is None:
        which = "a GPU" if gpus == 1 else f"{gpus} GPUs"
        them = "it" if gpus == 1 else "them"
        text = f"It had {which}; the text does not say whether it used {them}."
        return [Conclusion("gpu_unknown", text)]
    return [_gpu_share(job, share), *_cores_per_gpu(job, share)]


def _gpu_share(job: JobFields, share: float) -> Conclusion:
    gpus = job.gpus or 1
    which = "The GPU was" if gpus == 1 else f"The {gpus} GPUs were"
    text = f"{which} busy {format_share(share)} of the time"
    used = job.cores_used
    if share >= GPU_BUSY:
        return Conclusion("gpu_busy", f"{text}.")
    if used is not None and (job.cores or 0) > 1 and HARDLY <= used / gpus <= ONE[1]:
        per = "one core" if gpus == 1 else "about one core each"
        return Conclusion(
            "gpu_fed_by_one_core",
            f"{text}, with {used:.2f} of {job.cores} cores: {per} feeds it. More loader workers, "
            "or fewer and larger operations, may keep it busier.",
        )
    return Conclusion("gpu_waits", f"{text}: it waited for the rest.")


def _cores_per_gpu(job: JobFields, share: float) -> list[Conclusion]:
    """Advise fewer cores per GPU if the GPUs are busy and most of the job's cores are idle."""
    used, cores, gpus = job.cores_used, job.cores, job.gpus
    if share < GPU_BUSY or used is None or not cores or not gpus or used > HARDLY * cores:
        return []
    low = max(ceil(1.5 * used / gpus), 2)
    if 2 * low * gpus >= cores:
        return []
    return [
        Conclusion(
            "cores_for_gpu",
            f"{used / gpus:.1f} cores busy per GPU, {cores / gpus:.0f} requested: {low} to "
            f"{2 * low} per GPU would do.",
        )
    ]


# Memory.


def memory_is_counted(job: JobFields) -> bool:
    """Return whether the memory peak is large enough to be the program's own.

    A tiny peak was never sampled, or is that of a shell.
    """
    return job.memory_mib is not None and job.memory_mib >= LEAST_MIB


def _memory(job: JobFields) -> list[Conclusion]:
    used, asked, share = job.memory_mib, job.memory_asked_mib, job.memory_efficiency
    if used is None and share is None:
        return []
    figure = _memory_figure(job)
    if job.state in OUT_OF_MEMORY:
        return []  # its end says it
    if used is not None and used < LEAST_MIB and not (share and share > AT_LIMIT):
        return [
            Conclusion(
                "memory_not_counted",
                f"{figure}, less than Python with torch takes. Schedulers sample memory now and "
                "then, and only of processes that they started: the program was not counted, or is "
                "very small. Nothing is sized from it.",
            )
        ]
    if share is not None and share > IMPOSSIBLE:
        return [
            Conclusion(
                "memory_impossible",
                f"{figure}: more than the job had. Pages that processes share were counted once "
                "for each (DataLoader workers, ranks), one task's figure was multiplied, or no "
                "limit was enforced: nothing is sized from it.",
            )
        ]
    if share is not None and share >= AT_LIMIT:
        return [
            Conclusion(
                "memory_at_limit",
                f"{figure}: at its limit, which is no proof of need. Files that were read stay in "
                "memory and count until something else needs the room. Keep the request.",
            )
        ]
    if share is None or share >= MODEST or used is None or not asked:
        return [Conclusion("memory", f"{figure}.")]
    if job.is_running:
        return [Conclusion("memory", f"{figure} so far.")]
    size = _memory_request(job)
    if size is None:
        return [Conclusion("memory_low", f"{figure}{_why_not_sized(job)}.")]
    text = f"{figure}: {format_memory(size)} would have been enough, a quarter above the peak."
    return [Conclusion("memory_oversized", text)]


def _memory_figure(job: JobFields) -> str:
    used, asked, share = job.memory_mib, job.memory_asked_mib, job.memory_efficiency
    if used is None:
        return f"Memory: {format_share(share or 0)} of the request"
    text = f"Memory: at most {format_memory(used)}"
    if job.memory_counted == ONE_TASK:
        return f"Memory, of its largest task: {format_memory(used)}; the job's was at least that"
    if job.memory_counted == LARGEST:
        text = f"Memory, of the largest of {job.jobs}: {format_memory(used)}"
    if asked and share is not None:
        text += f" of {format_memory(asked)} ({format_share(share)})"
    return text


def _why_not_sized(job: JobFields) -> str:
    if may_be_several_nodes(job):
        return "; how it was spread over the nodes is not known, so no smaller request follows"
    if job.memory_counted == "LSF":
        return "; LSF may not count shared or mapped memory, so no smaller request follows"
    if job.memory_counted == "mean" or (job.jobs and job.memory_counted != LARGEST):
        return "; a mean says nothing of the largest, so no smaller request follows"
    if job.jobs:
        return "; not all of them ran to their end, so no smaller request follows"
    if not job.state and job.exit_code is None:
        return "; whether it ran to its end is not known, so no smaller request follows"
    if _ended_well(job) and hardly_worked(job):
        return (
            "; of its CPU time hardly any was counted, and its memory may be missing like that, so "
            "no smaller request follows"
        )
    if _ended_well(job) and job.elapsed_s is None:
        return "; how long it ran is not known, so no smaller request follows"
    if _ended_well(job):
        return "; it ran for minutes only, so no smaller request follows"
    return "; it did not run to its end, so no smaller request follows"


def may_be_several_nodes(job: JobFields) -> bool:
    """Return whether the job had several nodes, by its number of cores if nothing else says."""
    return job.nodes > 1 if job.nodes else (job.cores or 0) > LARGEST_NODE


def _ended_well(job: JobFields) -> bool:
    return job.is_completed or (not job.state and job.exit_code == 0 and not job.signal)


def _memory_request(job: JobFields) -> float | None:
    """Return a smaller memory request in MiB, in whole GiB; None if none would be safe."""
    used, asked = job.memory_mib, job.memory_asked_mib
    if not used or not asked or not memory_is_counted(job) or may_be_several_nodes(job):
        return None
    if job.memory_counted in ("LSF", "mean", "virtual"):
        return None
    if job.jobs and job.memory_counted != LARGEST:
        return None
    if hardly_worked(job):  # what was missed of its CPU time may be missing of its memory
        return None
    if not _ended_well(job) or used >= MODEST * asked or (job.elapsed_s or 0) < BRIEF_S:
        return None
    size = max(ceil(ROOM * used / 1024) * 1024.0, LEAST_REQUEST_MIB)
    return size if size < asked else None


# Time and end.


def _time(job: JobFields) -> list[Conclusion]:
    elapsed, limit, share = job.elapsed_s, job.limit_s, job.time_efficiency
    if job.state in OUT_OF_TIME:
        ran = (
            f" of {_time_text(limit)}"
            if limit
            else (f" after {_time_text(elapsed)}" if elapsed else "")
        )
        if hardly_worked(job) and (job.gpu_efficiency or 0) < GPU_IDLE:
            text = (
                f"It was ended at its time limit{ran} with hardly any CPU time: it waited, hung "
                "or was not counted, and whether more time helps is not known."
            )
            return [Conclusion("time_limit_reached", text)]
        return [
            Conclusion(
                "time_limit_reached",
                f"It was ended at its time limit{ran}: it needs more, how much more is not known.",
            )
        ]
    if share is None or elapsed is None or share >= MODEST or not job.is_completed:
        return []
    of = f" of {_time_text(limit)}" if limit else ""
    return [
        Conclusion(
            "time_limit_long",
            f"Time: {_time_text(elapsed)}{of} ({format_share(share)}). A shorter limit may "
            "start sooner; one run does not show how long the longest takes.",
        )
    ]


def _end(job: JobFields) -> list[Conclusion]:
    if job.state in OUT_OF_MEMORY:
        held = f" {format_memory(job.memory_asked_mib)}" if job.memory_asked_mib else ""
        text = (
            f"It was killed for its memory: it needs more than{held or ' it had'}, how much more "
            "is not known. A peak below the limit is what was sampled last, not what it needed."
        )
        return [Conclusion("out_of_memory", text)]
    if job.state in OUT_OF_TIME:
        return []
    if job.state == "NODE_FAIL":
        return [Conclusion("node_failed", "Its node failed: nothing of this is the job's doing.")]
    if job.state == "PREEMPTED":
        return [Conclusion("preempted", "It was stopped for a job with precedence.")]
    if job.signal:
        at_limit = job.signal == 9 and (job.memory_efficiency or 0) >= AT_LIMIT
        text = describe_signal(job.signal)
        if at_limit:
            text += " Its memory was at the limit, so most likely for that."
        return [Conclusion("signal", text)]
    if job.exit_code:
        return [Conclusion("exit_code", describe_exit_code(job.exit_code))]
    if job.state == "CANCELLED":
        text = "It was cancelled before its end: what it would have needed is not known."
        return [Conclusion("cancelled", text)]
    return []


def _attempts(job: JobFields) -> list[Conclusion]:
    if not job.attempts or job.attempts < 2:
        return []
    lost = job.lost_core_hours
    cost = (
        f"; the {pluralize(job.attempts - 1, 'attempt')} before cost {format_core_hours(lost)}"
        if lost
        else ""
    )
    return [
        Conclusion(
            "requeued",
            f"It was started {job.attempts} times{cost}. The figures are those of the last.",
        )
    ]


def _progress(job: JobFields) -> list[Conclusion]:
    if not job.is_running:
        return []
    return [Conclusion("running", "It has not ended: the figures are those so far.")]


# What stays open, and what to do.

NO_CPU: Final = "how many of its cores it used: the text lacks CPU time or elapsed time"
NO_CORES: Final = "how many cores it had: give it with --cores N"
WAITED: Final = (
    "what it waited for (files, the network, a GPU, other processes), or where its work was counted"
)
SPINS: Final = (
    "whether the busy cores did useful work: threads that wait for one another spin, which counts "
    "as work"
)
SCALES: Final = "whether fewer cores would be as fast"
SECOND: Final = "whether a second core would make it faster"
CONFINED: Final = (
    "whether the job was held to fewer cores (binding, cgroup, srun without --cpus-per-task) or "
    "one thread does its work"
)
SEVERAL: Final = "whether that was one core all the time, or several for a part of it"
WHO_WAITS: Final = "whether some ranks or threads work while others wait, or all pause together"
PHASES: Final = "where the time goes: input, the training step, synchronization, evaluation"


def _open(job: JobFields, codes: set[str]) -> list[str]:
    """List the questions that the job's figures leave open."""
    if codes & {"too_short", "cpu_impossible"}:
        return []
    asked: list[str] = []
    if job.efficiency is None and (job.cores_used is None or job.cores is not None):
        return [NO_CPU]
    if job.cores is None:
        asked.append(NO_CORES)
    if "cores_busy" in codes:
        return [*asked, *([SECOND] if job.cores == 1 else [SPINS, SCALES])]
    if codes & {"one_core", "share_of_one_core", "gpu_fed_by_one_core"}:
        alone = "never_a_second_core" in codes or _kept_to_one(job, job.cores or 1)
        return [*asked, CONFINED, *([] if alone else [SEVERAL])]
    if "almost_idle" in codes or job.cores == 1:
        return [*asked, WAITED]
    return [*asked, WHO_WAITS, PHASES]


def _request(job: JobFields, codes: set[str]) -> NextRequest:
    if codes & {"too_short", "figures_disagree"} or job.is_running:
        return NextRequest()
    nodes = None
    if job.nodes_unused and job.nodes and job.nodes > job.nodes_unused and job.is_completed:
        nodes = job.nodes - job.nodes_unused
    memory = _memory_request(job) if "memory_oversized" in codes else None
    if "out_of_memory" in codes and job.memory_asked_mib and not may_be_several_nodes(job):
        memory = ceil(1.5 * job.memory_asked_mib / 1024) * 1024.0
    limit = None
    idle = codes & {"almost_idle", "gpu_idle"}
    if "time_limit_reached" in codes and job.limit_s and not idle and job.efficiency is not None:
        limit = 2 * job.limit_s
    cores = 1 if "never_a_second_core" in codes and job.is_completed else None
    return NextRequest(nodes, cores, memory, limit)


def _explanation(
    job: JobFields, said: Sequence[Conclusion], asked: Sequence[str], request: NextRequest
) -> Explanation:
    step, why = _next_step(job, {each.code for each in said}, request)
    confidence, reason = _confidence(job, {each.code for each in said})
    return Explanation(job, tuple(said), tuple(asked), request, step, why, confidence, reason)


def is_slurm(job: JobFields) -> bool:
    return job.source in SLURM


def array_of(job_id: str) -> str:
    """Return the id of the Slurm array whose task this is, 123 of `123_4`; empty for others."""
    base, _, task = job_id.partition("_")
    return base if base.isdecimal() and task.isdecimal() else ""


def asked_of_sacct(ids: Sequence[str]) -> str:
    return f"sacct -j {','.join(ids)} --parsable2 --format={FIELDS} | hpcncf explain"


def sbatch_options(request: NextRequest) -> str:
    """Format a request as sbatch options, such as `--mem=4G --time=02:00:00`."""
    options = []
    if request.nodes:
        options.append(f"--nodes={request.nodes}")
    if request.memory_mib:
        options.append(f"--mem={request.memory_mib / 1024:.0f}G")
    if request.limit_s:
        minutes = ceil(request.limit_s / 60)
        days, rest = divmod(minutes, 1440)
        clock = f"{rest // 60:02}:{rest % 60:02}:00"
        options.append(f"--time={days}-{clock}" if days else f"--time={clock}")
    return " ".join(options)


MEASURE: Final = (
    "Put it before the command in your job script: it shows the cores allocated, usable and used, "
    "where the time goes, to the line, and what to change."
)
OBSERVE: Final = (
    "It submits your script as it is and watches the job: the end of the log then shows the cores "
    "allocated, usable and used, where the time goes, to the line, and what to change."
)
SEES_GPU: Final = (
    "Run it in the job script first. False: this torch has no CUDA, or the job sees no GPU. True: "
    "the program does not move its model and batches to the GPU."
)


def _next_step(job: JobFields, codes: set[str], request: NextRequest) -> tuple[str, str]:
    slurm = is_slurm(job)
    measure = ("hpcncf sbatch job.sh", OBSERVE) if slurm else ("hpcncf run -- COMMAND", MEASURE)
    if job.is_waiting:
        if slurm and job.id:
            return (
                f"squeue --start -j {job.id}",
                "When Slurm expects to start it, and why it waits.",
            )
        return "", ""
    if "too_short" in codes:
        return measure[0], f"{measure[1]} Let it run for ten minutes or more."
    if "gpu_idle" in codes:
        return "python -c 'import torch; print(torch.cuda.is_available())'", SEES_GPU
    missing = job.efficiency is None and (job.cores_used is None or job.cores is not None)
    if missing and slurm and job.id:
        ended = ", once it has ended" if job.is_running else ""
        return asked_of_sacct(
            [job.id]
        ), f"It brings CPU time, memory and GPU use of the job's steps{ended}."
    options = sbatch_options(request) if slurm else ""
    fine = codes & {"cores_busy", "gpu_busy"}
    if options and ("out_of_memory" in codes or "time_limit_reached" in codes):
        if "out_of_memory" in codes:
            why = "Half as much memory again; the peak of that run shows whether it was needed."
        else:
            why = "Twice the time. Or save checkpoints, and resume."
        return f"sbatch {options} job.sh", why
    if options and "+" in job.id:  # sbatch would give them to the first part, whichever this is
        return measure
    if options and fine and job.memory_counted != LARGEST and (array := array_of(job.id)):
        return asked_of_sacct([array]), "The task of the array that needs most decides."
    if options and fine and not codes & {"cpu_impossible", "gpu_waits"}:
        return f"sbatch {options} job.sh", "The same run, with what it used."
    return measure


def _confidence(
    job: JobFields, codes: set[str]
) -> tuple[Literal["high", "medium", "low", "none"], str]:
    if codes & {"not_started", "too_short"}:
        return "none", "there is nothing to judge yet"
    if codes & {"cpu_impossible", "figures_disagree"}:
        return "none", "the CPU figure cannot be right, or contradicts another"
    if job.efficiency is None and job.gpu_efficiency is None:
        return "low", "the text does not say how busy the cores were"
    if job.cores is None or job.elapsed_s is None:
        missing = [
            name
            for name, value in (("cores", job.cores), ("run time", job.elapsed_s))
            if value is None
        ]
        return "low", f"the text has no {' and no '.join(missing)}"
    if job.jobs:
        return "medium", "a mean over several jobs"
    if job.is_running or job.elapsed_s < BRIEF_S:
        return "medium", "it has not ended" if job.is_running else "a run of minutes"
    if "memory_impossible" in codes or "more_nodes_than_used" in codes:
        return "medium", "one of the figures may not count everything"
    if job.cpu_s is None:
        return "medium", "CPU efficiency as printed: there is no CPU time to check it with"
    return "high", "CPU time, run time and cores are all there"


def common_step(explanations: Sequence[Explanation]) -> tuple[str, str]:
    """Return one next step for all jobs, and its reason.

    If sacct has figures that are missing, the step is a single call of sacct.
    """
    asked = [each for each in explanations if each.next_step.startswith("sacct")]
    if asked:
        return asked_of_sacct([each.job.id for each in asked]), asked[0].why
    return next(((each.next_step, each.why) for each in explanations if each.next_step), ("", ""))
