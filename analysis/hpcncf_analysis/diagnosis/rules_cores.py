"""Rules on cores, memory and GPUs."""

from __future__ import annotations

from hpcncf.text import pluralize
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding
from hpcncf_analysis.diagnosis.expected_gain import applied
from hpcncf_analysis.formatting import format_cores, format_mebibytes, format_percent


def memory_pressure(evidence: Evidence) -> Finding | None:
    """Find time lost because threads waited for memory.

    At the memory limit, where pages are read again and again, the cost is the time in which no
    thread computed for itself.
    """
    waits = min(1.0, evidence.of_elapsed(evidence.memory_pressure_s))
    limit_mib, faults = evidence.memory_limit_mib, evidence.major_faults or 0
    peak_mib = evidence.memory_peak_mib or 0.0
    if (
        limit_mib
        and peak_mib >= thresholds.MEMORY_LIMIT * limit_mib
        and evidence.of_elapsed(faults) >= thresholds.FAULTS_PER_S
    ):
        in_kernel = evidence.of_elapsed(evidence.system_s) / evidence.world_size
        waits = max(waits, min(1.0, evidence.idle + in_kernel))
    if waits < thresholds.WORTH:
        return None
    lines = [
        f"for {format_percent(waits)} of the time threads waited for memory, or the kernel made "
        "room"
    ]
    if limit_mib:
        peak, limit = map(format_mebibytes, (evidence.memory_peak_mib, limit_mib))
        lines.append(f"memory peaked at {peak} of a limit of {limit}")
    if evidence.swap_peak_mib:
        lines.append(f"{format_mebibytes(evidence.swap_peak_mib)} were swapped out")
    if faults:
        lines.append(f"{faults:,} page faults read from a disk")
    return Finding(
        "memory_pressure",
        waits,
        "time",
        tuple(lines),
        "Ask for more memory (resources.mem_gb), or keep less of it: fewer workers, fewer ranks.",
    )


def gpu_underused(evidence: Evidence) -> Finding | None:
    """Find GPUs that idle because they wait for input or for the CPU to launch kernels."""
    gpus = evidence.gpus
    if gpus is None or gpus.busy >= thresholds.GPU_BUSY:
        return None
    share, when = 1 - gpus.busy, "of the time"
    if gpus.training:
        after = (evidence.training_s, evidence.evaluation_s, evidence.checkpoint_s)
        share *= min(1.0, evidence.of_elapsed(sum(each or 0.0 for each in after)))
        when = "of its training"
    if not evidence.worth(share):
        return None
    number = "GPU" if gpus.number == 1 else f"{gpus.number} GPUs, on average,"
    waits = evidence.of_steps.get("input", 0.0)
    if not evidence.of_steps:
        why = "the record has no phases: whether it waits for input or for launches is not known"
        remedy = "Have the program report its phases (docs/any-program.md) to know what for."
    elif waits >= thresholds.GPU_INPUT:
        why = f"input-bound: {format_percent(waits)} of a step waits for the next batch"
        remedy = "Make batches faster than the GPU takes them"
        remedy += ": training.loader vectorized." if evidence.trained else "."
    else:
        why = (
            f"launch-bound: only {format_percent(waits)} of a step waits for input, the rest is on "
            "the CPU"
        )
        remedy = (
            "Give each launch more to do: a larger batch per rank, or several trainings on one GPU."
        )
    lines = [f"kernels of this run were on the {number} for {format_percent(gpus.busy)} {when}"]
    lines += [] if gpus.watts is None else [f"{gpus.watts:.0f} W on average, per GPU"]
    return Finding("gpu_underused", share, "time", (*lines, why), remedy)


def one_core_confinement(evidence: Evidence) -> Finding | None:
    """Find runs whose affinity, cgroup or CPU quota leaves fewer cores than were allocated."""
    allocated, usable = evidence.cores.allocated, _usable(evidence)
    if not allocated or usable is None:
        return None
    short = allocated - usable
    if short < thresholds.CONFINED_CORES or short / allocated < thresholds.WORTH:
        return None
    lines = [f"{format_cores(allocated)} cores allocated, {format_cores(usable)} usable"]
    if evidence.throttled_s:
        lines.append(f"a CPU quota held threads back for {evidence.throttled_s:.0f} s in all")
    if evidence.affinity_changed:
        lines.append("the affinity mask at the end was not the one at the start")
    return Finding(
        "one_core_confinement",
        short / allocated,
        "cores",
        tuple(lines),
        f"Give srun -c {format_cores(allocated / evidence.world_size)} and no --cpu-bind, and "
        "start nothing under taskset or a smaller cgroup quota; else ask for the cores that can be "
        "used.",
    )


def _usable(evidence: Evidence) -> float | None:
    """Number of usable cores; those used if a quota or a later binding was the limit."""
    usable, used = evidence.cores.usable, evidence.cores.used
    if usable is None or used is None:
        return usable
    throttled = evidence.of_elapsed(evidence.throttled_s) >= thresholds.WORTH * usable
    return min(usable, used) if throttled or _bound_itself(evidence) else usable


def _bound_itself(evidence: Evidence) -> bool:
    """Whether the run seems to have bound its threads to few cores after its start.

    The affinity mask changed, and threads wait for a core while usable cores idle.
    """
    usable, used = evidence.cores.usable or 0.0, evidence.cores.used or 0.0
    free = usable - used - (evidence.others_cores or 0.0)
    return (
        evidence.affinity_changed
        and min(free, evidence.starved) >= thresholds.WORTH * usable
        and used <= thresholds.RUNNABLE * evidence.world_size
    )


def oversubscribed(evidence: Evidence) -> Finding | None:
    """Find runs in which more threads of their own want to run than there are usable cores."""
    usable, threads, ranks = evidence.cores.usable, evidence.threads, evidence.world_size
    if evidence.runnable is not None:
        # As many as neighbours use cores may be waiting for those: they are not counted.
        wanting, how = evidence.runnable - (evidence.others_cores or 0.0), "wanted to run at a time"
    elif threads is not None:
        wanting, how = float(threads * ranks), "were asked for"
    else:
        return None
    if not usable or wanting < thresholds.RUNNABLE * usable:
        return None
    if ranks > 1 and _fits(evidence, usable) and wanting < thresholds.HANDED_OVER * usable:
        return None
    share = 1 - usable / wanting
    if share < thresholds.WORTH:
        return None
    lines = [f"{wanting:.1f} threads {how} on {format_cores(usable)} usable cores"]
    if threads is not None:
        lines.append(f"{pluralize(threads, 'thread')} for each of {pluralize(ranks, 'rank')}")
    if evidence.involuntary_per_s is not None:
        lines.append(f"{evidence.involuntary_per_s:,.0f} involuntary context switches a second")
    asked = evidence.training.get("threads")
    too_many = isinstance(asked, int) and asked * ranks > usable
    auto = "training.threads auto, or " if evidence.trained else ""
    return Finding(
        "oversubscribed",
        share,
        "time",
        tuple(lines),
        f"Run no more threads than usable cores: {auto}OMP_NUM_THREADS and the number of workers "
        "such that their product is the cores.",
        applied(evidence, threads="auto") if too_many else {},
    )


def _fits(evidence: Evidence, usable: float) -> bool:
    """Whether threads and loader workers of all ranks are no more than the usable cores."""
    if evidence.threads is not None:
        return (evidence.threads + evidence.workers) * evidence.world_size <= usable
    seen = [each for each in evidence.program if not each.is_worker and each.torch_threads]
    workers = sum(loader.workers for each in seen for loader in each.loaders)
    return bool(seen) and sum(each.torch_threads or 0 for each in seen) + workers <= usable


def neighbour_load(evidence: Evidence) -> Finding | None:
    """Find core time that other processes or the hypervisor took from waiting threads."""
    usable = evidence.cores.usable
    if not usable:
        return None
    lost = min(evidence.others_cores or 0.0, evidence.starved_by_others)
    stolen = (evidence.steal or 0.0) * usable
    share = (lost + stolen) / usable
    if share < thresholds.WORTH:
        return None
    lines = []
    if lost:
        others, starved = map(format_cores, (evidence.others_cores, evidence.starved_by_others))
        lines.append(
            f"other processes used {others} of its {pluralize(usable, 'core')}, while {starved} of "
            "its own threads waited for one"
        )
    if (evidence.steal or 0.0) >= thresholds.STEAL:
        lines.append(f"the hypervisor took {format_percent(evidence.steal)} of the cores' time")
    return Finding(
        "neighbour_load",
        min(share, 1.0),
        "cores",
        tuple(lines),
        "Measure again on cores of your own: exclusive: true, or when the machine is quiet."
        + (_fewer_threads(evidence, usable - lost) if lost else ""),
    )


def _fewer_threads(evidence: Evidence, free: float) -> str:
    """Sentence that advises fewer torch threads beside neighbours, or empty.

    Threads of torch that share an operation wait for each other: a neighbour on the core of one
    holds up all. Two programs of short operations took a sixth of the time with one thread.
    """
    ranks = [each for each in evidence.program if not each.is_worker and each.steps]
    threads = max((each.torch_threads or 0 for each in ranks), default=0)
    if threads < 2 or threads * len(ranks) <= free + thresholds.CONFINED_CORES:
        return ""
    fewer = max(1, int(free / len(ranks)))
    return f" Beside others it may be faster with fewer threads: hpcncf run --with threads={fewer}."
