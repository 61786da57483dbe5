"""Rules on cores: those that cannot be used, are fought for, used by others, or idle. Pure."""

from __future__ import annotations

from typing import Any

from hpcncf_analysis.diagnosis import gains, thresholds
from hpcncf_analysis.diagnosis.changes import applied
from hpcncf_analysis.diagnosis.evidence import Evidence
from hpcncf_analysis.diagnosis.finding import Finding
from hpcncf_analysis.labels import counted
from hpcncf_analysis.words import cores, percent


def one_core_confinement(evidence: Evidence) -> Finding | None:
    """Affinity, a cgroup or its quota leave fewer cores than were allocated."""
    allocated, usable = evidence.cores.allocated, _usable(evidence)
    if not allocated or usable is None:
        return None
    short = allocated - usable
    if short < thresholds.CONFINED_CORES or short / allocated < thresholds.WORTH:
        return None
    return Finding(
        "one_core_confinement",
        short / allocated,
        "cores",
        (
            f"{cores(allocated)} cores allocated, {cores(usable)} usable",
            *_held_back(evidence),
        ),
        f"Give srun -c {_per_rank(evidence)} and no --cpu-bind, and start nothing under taskset "
        "or a smaller cgroup quota; else ask for the cores that can be used.",
    )


def _usable(evidence: Evidence) -> float | None:
    """Where a quota or a later binding held it back, that is what was used: no rank sees it."""
    usable, used = evidence.cores.usable, evidence.cores.used
    if usable is None or used is None:
        return usable
    throttled = evidence.of_elapsed(evidence.throttled_s) >= thresholds.WORTH * usable
    return min(usable, used) if throttled or _bound_itself(evidence) else usable


def _bound_itself(evidence: Evidence) -> bool:
    """The mask became another one, threads wait for a core, and yet cores that were usable idle."""
    usable, used = evidence.cores.usable or 0.0, evidence.cores.used or 0.0
    free = usable - used - (evidence.others_cores or 0.0)
    return (
        evidence.affinity_changed
        and min(free, evidence.starved) >= thresholds.WORTH * usable
        and used <= thresholds.RUNNABLE * evidence.world_size
    )


def _held_back(evidence: Evidence) -> list[str]:
    told = []
    if evidence.throttled_s:
        told.append(f"a CPU quota held threads back for {evidence.throttled_s:.0f} s in all")
    if evidence.affinity_changed:
        told.append("the affinity mask at the end was not the one at the start")
    return told


def _per_rank(evidence: Evidence) -> str:
    return cores((evidence.cores.allocated or 1) / evidence.world_size)


def oversubscribed(evidence: Evidence) -> Finding | None:
    """More of the run's own threads want to run than there are cores for them."""
    usable, wanting = evidence.cores.usable, _wanting(evidence)
    if not usable or wanting is None or wanting < thresholds.RUNNABLE * usable:
        return None
    share = 1 - usable / wanting
    if share < thresholds.WORTH:
        return None
    return Finding(
        "oversubscribed",
        share,
        "time",
        (*_threads(evidence, wanting, usable), *_switches(evidence)),
        "Run no more threads than usable cores: training.threads auto, or OMP_NUM_THREADS and the "
        "number of workers such that their product is the cores.",
        applied(evidence, threads="auto") if _too_many_asked(evidence) else {},
    )


def _wanting(evidence: Evidence) -> float | None:
    """Threads that want a core at once: measured, else as many as each rank was told to use.

    As many as neighbours use cores may be waiting for those: they are not counted.
    """
    if evidence.runnable is not None:
        return evidence.runnable - (evidence.others_cores or 0.0)
    return None if evidence.threads is None else float(evidence.threads * evidence.world_size)


def _threads(evidence: Evidence, wanting: float, usable: float) -> list[str]:
    measured = "wanted to run at a time" if evidence.runnable is not None else "were asked for"
    told = [f"{wanting:.1f} threads {measured} on {cores(usable)} usable cores"]
    if evidence.threads is not None:
        ranks = counted(evidence.world_size, "rank")
        told.append(f"{counted(evidence.threads, 'thread')} for each of {ranks}")
    return told


def _switches(evidence: Evidence) -> list[str]:
    if evidence.involuntary_per_s is None:
        return []
    return [f"{evidence.involuntary_per_s:,.0f} involuntary context switches a second"]


def _too_many_asked(evidence: Evidence) -> bool:
    usable = evidence.cores.usable or 0.0
    asked = evidence.training.get("threads")
    return isinstance(asked, int) and asked * evidence.world_size > usable


def neighbour_load(evidence: Evidence) -> Finding | None:
    """Others, or the hypervisor, took core time that this run's threads wanted."""
    usable = evidence.cores.usable
    if not usable:
        return None
    lost = min(evidence.others_cores or 0.0, evidence.starved_by_others)
    stolen = (evidence.steal or 0.0) * usable
    share = (lost + stolen) / usable
    if share < thresholds.WORTH:
        return None
    told = []
    if lost:
        told.append(
            f"other processes used {cores(evidence.others_cores)} of its "
            f"{counted(usable, 'core')}, while {cores(evidence.starved_by_others)} of its own "
            "threads waited for one"
        )
    if (evidence.steal or 0.0) >= thresholds.STEAL:
        told.append(f"the hypervisor took {percent(evidence.steal)} of the cores' time")
    return Finding(
        "neighbour_load",
        min(share, 1.0),
        "cores",
        tuple(told),
        "Measure again on cores of your own: exclusive: true, or when the machine is quiet.",
    )


def serial_step(evidence: Evidence) -> Finding | None:
    """Somebody computes all the time, on one core, and the others that could be used idle."""
    usable, used, share = evidence.cores.usable, evidence.wanted, _serial(evidence)
    if usable is None or share < thresholds.WORTH:
        return None
    changes, ranks = _one_core(evidence), evidence.world_size
    while_training = " while it trained" if evidence.used_in_training is not None else ""
    told = [f"{cores(used)} of {cores(usable)} usable cores in use or wanted{while_training}"]
    if evidence.threads is not None:
        told.append(f"it computes with {counted(evidence.threads, 'thread')} per rank")
    return Finding(
        "serial_step",
        share,
        "cores",
        tuple(told),
        _fewer(evidence),
        changes,
        gains.fewer_core_hours(1 - ranks / usable, gains.SERIAL_LEFT) if changes else None,
    )


def _serial(evidence: Evidence) -> float:
    """Share of the usable cores that idle beside one that does not; 0 where every rank waits, and
    without those that idle because one thread makes the input."""
    usable, used, ranks = evidence.cores.usable, evidence.wanted, evidence.world_size
    if not usable or used is None or usable / ranks < 1 + thresholds.CONFINED_CORES:
        return 0.0
    if used < thresholds.ONE_THREAD * ranks:
        return 0.0
    return 1 - used / usable - evidence.phases.get("input", 0.0) * (1 - ranks / usable)


def _fewer(evidence: Evidence) -> str:
    if evidence.threads == 1:
        return "Ask for one core per rank, or set training.threads to auto where steps are large."
    return "Ask for one core per rank: a step this small does not spread over more."


def _one_core(evidence: Evidence) -> dict[str, Any]:
    """Settings with one core per rank, where each of them uses about one: no more threads than
    that. With workers it is not known who used it."""
    few = (evidence.wanted or 0.0) < thresholds.RUNNABLE * evidence.world_size
    shrinks = evidence.trained and evidence.resources.get("cpus_per_task", 1) > 1
    if not (few and shrinks) or evidence.workers:
        return {}
    asked = evidence.training.get("threads")
    threads = applied(evidence, threads="auto") if isinstance(asked, int) and asked > 1 else {}
    return {"resources.cpus_per_task": 1, **threads}
