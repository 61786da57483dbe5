"""Rules on cores, memory, GPUs, start-up, evaluation and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

from hpcncf.collect.training_columns import in_training
from hpcncf.records.schema import Gpu, NodeRecord, RankRecord
from hpcncf_analysis.configurations import pluralize
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding, Gpus
from hpcncf_analysis.diagnosis.expected_gain import (
    SAMPLED_LEFT,
    SAVED_LEFT,
    SERIAL_LEFT,
    applied,
    fewer_core_hours,
)
from hpcncf_analysis.formatting import (
    format_cores,
    format_duration,
    format_mebibytes,
    format_percent,
)


def too_short_to_judge(evidence: Evidence) -> Finding | None:
    """Too little was measured after start-up, unless start-up is what there is to say."""
    left_s = evidence.elapsed_s - (evidence.startup_s or 0.0)
    few = (
        evidence.counted_steps is not None
        and evidence.counted_steps < thresholds.SHORT_STEPS
        and (evidence.training_s or 0.0) < thresholds.SHORT_S
        and not evaluation_bound(evidence)
    )
    enough = (left_s >= thresholds.SHORT_S and not few) or evidence.elapsed_s >= thresholds.LONG_S
    if enough or startup_bound(evidence):
        return None
    told = [f"{format_duration(max(left_s, 0.0))} were measured"]
    if evidence.startup_s:
        told[0] += f" after {format_duration(evidence.startup_s)} of start-up"
    if few:
        told.append(f"{evidence.counted_steps} steps were counted")
    return Finding(
        "too_short_to_judge",
        min(1.0, evidence.of_elapsed(evidence.startup_s)),
        "time",
        tuple(told),
        f"Let it run for {thresholds.SHORT_S:g} s after its start-up at least, better a minute.",
    )


def startup_bound(evidence: Evidence) -> Finding | None:
    own_s = _without_neighbours(evidence, evidence.startup_s or 0.0)
    share = evidence.of_elapsed(own_s)
    if own_s < 2 * thresholds.STARTUP_S or share < thresholds.STARTUP:
        return None
    return Finding(
        "startup_bound",
        min(share, 1.0),
        "time",
        (
            f"{format_duration(evidence.startup_s)} of {format_duration(evidence.elapsed_s)} "
            "passed before the "
            "first step",
        ),
        "Do more in one run (more epochs), and have packages and data on a fast file system.",
    )


def _without_neighbours(evidence: Evidence, seconds: float) -> float:
    """What is left of the time if as much of it as of the whole run's was waiting for a core that
    others used: imports, which compute, are as slow beside a neighbour as anything else."""
    if not evidence.others_cores or not evidence.runqueue_s:
        return seconds
    return seconds * max(0.0, 1 - evidence.starved_by_others / evidence.world_size)


def evaluation_bound(evidence: Evidence) -> Finding | None:
    share = evidence.of_elapsed(evidence.evaluation_s)
    if not evidence.worth(share):
        return None
    full = evidence.training.get("evaluation") == "full"
    return Finding(
        "evaluation_bound",
        min(share, 1.0),
        "time",
        (
            f"evaluation takes {format_duration(evidence.evaluation_s)} of "
            f"{format_duration(evidence.elapsed_s)}",
            *(["training.evaluation is full: every user against every item"] if full else []),
        ),
        "Evaluate against sampled negatives (training.evaluation sampled)."
        if full
        else "Evaluate less often, or in larger batches"
        + (": training.engine native ranks fastest." if evidence.trained else "."),
        applied(evidence, evaluation="sampled") if full else {},
        fewer_core_hours(share, SAMPLED_LEFT) if full else None,
    )


def checkpoint_bound(evidence: Evidence) -> Finding | None:
    share = evidence.of_elapsed(evidence.checkpoint_s)
    if not evidence.worth(share):
        return None
    return Finding(
        "checkpoint_bound",
        min(share, 1.0),
        "time",
        (
            f"writing checkpoints takes {format_duration(evidence.checkpoint_s)} of "
            f"{format_duration(evidence.elapsed_s)}, {format_percent(share)}",
        ),
        "Write checkpoints less often (training.checkpoint_every), or to a faster disk.",
        applied(evidence, checkpoint_every=0),
        fewer_core_hours(share, SAVED_LEFT) if evidence.trained else None,
    )


def memory_pressure(evidence: Evidence) -> Finding | None:
    """It costs the time that threads waited for memory; at its limit, where pages are read anew all
    the time, what no thread computed for itself."""
    waits = min(1.0, evidence.of_elapsed(evidence.memory_pressure_s))
    if _reads_anew(evidence):
        waits = max(waits, _not_computing(evidence))
    if waits < thresholds.WORTH:
        return None
    told = [
        f"for {format_percent(waits)} of the time threads waited for memory, or the kernel made "
        "room"
    ]
    if evidence.memory_limit_mib:
        told.append(
            f"memory peaked at {format_mebibytes(evidence.memory_peak_mib)} of a limit of "
            f"{format_mebibytes(evidence.memory_limit_mib)}"
        )
    if evidence.swap_peak_mib:
        told.append(f"{format_mebibytes(evidence.swap_peak_mib)} were swapped out")
    if evidence.major_faults:
        told.append(f"{evidence.major_faults:,} page faults read from a disk")
    return Finding(
        "memory_pressure",
        waits,
        "time",
        tuple(told),
        "Ask for more memory (resources.mem_gb), or keep less of it: fewer workers, fewer ranks.",
    )


def _reads_anew(evidence: Evidence) -> bool:
    """Whether what was in memory is read again and again, since the limit leaves no room for it."""
    limit, faults = evidence.memory_limit_mib, evidence.major_faults or 0
    if not limit or evidence.memory_peak_mib is None:
        return False
    near = evidence.memory_peak_mib >= thresholds.MEMORY_LIMIT * limit
    return near and evidence.of_elapsed(faults) >= thresholds.FAULTS_PER_S


def _not_computing(evidence: Evidence) -> float:
    """Share of a rank's time in which its threads neither ran code of their own nor were kept from
    it by others."""
    in_kernel = evidence.of_elapsed(evidence.system_s) / evidence.world_size
    return min(1.0, evidence.idle + in_kernel)


Series = Sequence[float | None]


def gpus(nodes: Sequence[NodeRecord], ranks: Sequence[RankRecord] = ()) -> Gpus | None:
    """Means over all GPUs; `busy` is of the run's own kernels where NVML told them apart.

    Of the windows between the ranks' first step and their last, where there are any: a start of a
    minute is not the GPU's idleness. Of a command, of all of its time.
    """
    within = [in_training(ranks, node) for node in nodes]
    training = any(map(any, within))
    if not training:
        within = [[True] * len(node.length_s) for node in nodes]
    pairs = [
        (gpu, list(compress(node.length_s, chosen)), chosen)
        for node, chosen in zip(nodes, within, strict=True)
        for gpu in node.gpus or []
    ]
    busy = [share for each in pairs if (share := _busy(*each)) is not None]
    if not busy:
        return None
    lengths = [length for _, each, _ in pairs for length in each]
    joules = [
        value
        for gpu, _, chosen in pairs
        for value in compress(gpu.energy_j, chosen)
        if value is not None
    ]
    return Gpus(
        number=len(pairs),
        busy=sum(busy) / len(busy),
        watts=sum(joules) / sum(lengths) if joules and sum(lengths) else None,
        training=training,
    )


def _busy(gpu: Gpu, lengths: Sequence[float], chosen: Sequence[bool]) -> float | None:
    ours = _mean(list(compress(gpu.ours, chosen)), lengths)
    return _mean(list(compress(gpu.busy, chosen)), lengths) if ours is None else ours


def _mean(series: Series, lengths: Sequence[float]) -> float | None:
    told = [(value, s) for value, s in zip(series, lengths, strict=True) if value is not None]
    whole = sum(s for _, s in told)
    return sum(value * s for value, s in told) / whole if whole else None


def gpu_underused(evidence: Evidence) -> Finding | None:
    """A GPU that waits: for input, or for the CPU to launch its many small kernels."""
    told = evidence.gpus
    if told is None or told.busy >= thresholds.GPU_BUSY:
        return None
    share = (1 - told.busy) * (_trains(evidence) if told.training else 1.0)
    if not evidence.worth(share):
        return None
    why, remedy = _why(evidence)
    when = "of its training" if told.training else "of the time"
    numbers = [
        f"kernels of this run were on the {_format_number(told.number)} for "
        f"{format_percent(told.busy)} {when}",
        *([] if told.watts is None else [f"{told.watts:.0f} W on average, per GPU"]),
        *why,
    ]
    return Finding("gpu_underused", share, "time", tuple(numbers), remedy)


def _trains(evidence: Evidence) -> float:
    """Share of the elapsed time from the first step to the last, evaluation included."""
    after = (evidence.training_s, evidence.evaluation_s, evidence.checkpoint_s)
    return min(1.0, evidence.of_elapsed(sum(each or 0.0 for each in after)))


def _format_number(number: int) -> str:
    return "GPU" if number == 1 else f"{number} GPUs, on average,"


def _why(evidence: Evidence) -> tuple[list[str], str]:
    waits = evidence.phases.get("input", 0.0)
    if not evidence.phases:
        told = ["the record has no phases: whether it waits for input or for launches is not known"]
        return told, "Have the program report its phases (docs/any-program.md) to know what for."
    if waits >= thresholds.GPU_INPUT:
        told = [f"input-bound: {format_percent(waits)} of a step waits for the next batch"]
        return told, "Make batches faster than the GPU takes them: training.loader vectorized."
    told = [
        f"launch-bound: only {format_percent(waits)} of a step waits for input, the rest is on "
        "the CPU"
    ]
    return told, (
        "Give each launch more to do: a larger batch per rank, or several trainings on one GPU."
    )


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
            f"{format_cores(allocated)} cores allocated, {format_cores(usable)} usable",
            *_describe_throttling(evidence),
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


def _describe_throttling(evidence: Evidence) -> list[str]:
    told = []
    if evidence.throttled_s:
        told.append(f"a CPU quota held threads back for {evidence.throttled_s:.0f} s in all")
    if evidence.affinity_changed:
        told.append("the affinity mask at the end was not the one at the start")
    return told


def _per_rank(evidence: Evidence) -> str:
    return format_cores((evidence.cores.allocated or 1) / evidence.world_size)


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
    told = [f"{wanting:.1f} threads {measured} on {format_cores(usable)} usable cores"]
    if evidence.threads is not None:
        ranks = pluralize(evidence.world_size, "rank")
        told.append(f"{pluralize(evidence.threads, 'thread')} for each of {ranks}")
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
            f"other processes used {format_cores(evidence.others_cores)} of its "
            f"{pluralize(usable, 'core')}, while {format_cores(evidence.starved_by_others)} of "
            "its own "
            "threads waited for one"
        )
    if (evidence.steal or 0.0) >= thresholds.STEAL:
        told.append(f"the hypervisor took {format_percent(evidence.steal)} of the cores' time")
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
    told = [
        f"{format_cores(used)} of {format_cores(usable)} usable cores in use or "
        f"wanted{while_training}"
    ]
    if evidence.threads is not None:
        told.append(f"it computes with {pluralize(evidence.threads, 'thread')} per rank")
    return Finding(
        "serial_step",
        share,
        "cores",
        tuple(told),
        _fewer(evidence),
        changes,
        fewer_core_hours(1 - ranks / usable, SERIAL_LEFT) if changes else None,
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
