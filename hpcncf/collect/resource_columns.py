"""Columns of cores, CPU time, memory, waiting, GPUs and packs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import compress
from operator import mul
from typing import Any, Final, TypeGuard

from hpcncf.collect.node_means import TRAFFIC, Series, mean, ratio, traffic
from hpcncf.collect.training_columns import (
    PHASES_TRAINED,
    TRAINED,
    Row,
    efficiency_in_training,
    figures_trained,
    memory_growth,
    others_cores,
    training_time,
    windows_within,
)
from hpcncf.job.plan import Run
from hpcncf.records.schema import NodeRecord, RankEnd, RankRecord, Reported
from hpcncf.state.decide import has_all_ranks

# These mean what they mean for our own training, and stand in the same columns.
KNOWN: Final = ("instances_per_s", "loss", "hr10", "ndcg10", "startup_s", "evaluation_s")
TIMED: Final = tuple(f"{phase}_s" for phase in PHASES_TRAINED)
PARAMETER: Final = "parameter_"
METRIC: Final = "metric_"


def columns(run: Run, ranks: Sequence[RankRecord]) -> Row:
    """Columns of what the program itself reported, such as `parameter_lr`.

    Metrics are those of rank 0, as `metric_accuracy`; without them, what the probe observed.
    Phases are those of all ranks.
    """
    reported: Reported = next((record.reported for record in ranks if record.rank == 0), {})
    known = {name: reported[name] for name in KNOWN if is_number(reported.get(name))}
    shown = {*known, *phases(reported)}
    return {
        **{f"{PARAMETER}{name}": value for name, value in run.parameters.items()},
        **_observed(ranks),
        **_timed([record.reported for record in ranks]),
        **known,
        **{f"{METRIC}{name}": value for name, value in reported.items() if name not in shown},
    }


# The probe's phase of a step -> our own training's.
OBSERVED: Final = {
    "input": "input_s",
    "forward": "forward_s",
    "backward": "backward_s",
    "sync": "sync_s",
    "optimizer": "optimizer_s",
    "loop": "other_s",
}


def _observed(ranks: Sequence[RankRecord]) -> Row:
    """Columns of what the probe observed in a training program.

    Empty unless it observed every rank.
    """
    programs = [each for record in ranks for each in record.program if not each.is_worker]
    if not programs or len(programs) < max(len(ranks), programs[0].ranks):
        return {}
    if not all(each.steps for each in programs):
        return {}
    times: list[Reported] = []
    for each in programs:
        seconds: Reported = {
            name: each.phases[phase].seconds if phase in each.phases else 0.0
            for phase, name in OBSERVED.items()
        }
        times.append(seconds if each.samples is None else {**seconds, "instances": each.samples})
    evaluations = [each.phases.get("evaluation") for each in programs]
    longest_s = max(sum(phases(each).values()) for each in times)
    return {
        **_timed(times),
        "steps_per_s": ratio(programs[0].steps, longest_s),
        "startup_s": max(each.startup_s for each in programs),
        "evaluation_s": max((each.seconds for each in evaluations if each), default=0.0),
    }


def _timed(reported: Sequence[Reported]) -> Row:
    """Share of each reported phase in the time of all phases, and instances/s.

    The speed is all instances over the longest time of a rank, and missing unless every rank
    reports its instances.
    """
    times = [phases(each) for each in reported]
    seconds = {
        name: sum(each.get(name, 0.0) for each in times)
        for name in TIMED
        if any(name in each for each in times)
    }
    total = sum(seconds.values())
    if total <= 0:
        return {}
    shares: Row = {
        f"{name.removesuffix('_s')}_share": spent / total for name, spent in seconds.items()
    }
    instances = [each.get("instances") for each in reported]
    counted = [float(number) for number in instances if is_number(number)]
    if len(counted) == len(reported) and all(times):
        longest_s = max(sum(each.values()) for each in times)
        shares["instances_per_s"] = ratio(sum(counted), longest_s)
    return shares


def phases(reported: Reported) -> dict[str, float]:
    """Seconds of each phase that one rank reported, without negative values."""
    return {
        name: float(value)
        for name, value in reported.items()
        if name in TIMED and is_number(value) and value >= 0
    }


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Column -> where a rank's record holds it: summed over the ranks, but of the pressures the highest,
# and `throttled_s` once for each node, since its ranks share the job's cgroup.
WAITS: Final[dict[str, Callable[[RankRecord], float | None]]] = {
    "runnable_mean": lambda record: record.cpu.runnable_mean,
    "runqueue_s": lambda record: record.cpu.runqueue_s,
    "throttled_s": lambda record: record.cpu.throttled_s,
    "iowait_s": lambda record: record.cpu.iowait_s,
    "blocked_s": lambda record: record.io.blocked_s,
    "io_pressure_s": lambda record: record.io.pressure_s,
    "memory_pressure_s": lambda record: record.memory.pressure_s,
    "major_faults": lambda record: record.memory.major_faults,
    "swap_peak_mib": lambda record: record.memory.swap_peak_mib,
}


def columns_waits(ranks: Sequence[RankRecord]) -> Row:
    """Columns of waiting and pressure over all ranks; None where a rank's record lacks one.

    Values are summed over the ranks; of pressures the highest counts, and `throttled_s` counts
    once per node.
    """
    row: Row = {}
    for name, read in WAITS.items():
        known = all_or_none(map(read, ranks))
        if not known:
            row[name] = None
        elif name == "throttled_s":
            nodes: dict[int, float] = defaultdict(float)
            for record, value in zip(ranks, known, strict=True):
                nodes[record.node_index] = max(nodes[record.node_index], value)
            row[name] = sum(nodes.values())
        else:
            row[name] = max(known) if name.endswith("pressure_s") else sum(known)
    return row


def all_or_none(values: Iterable[float | None]) -> list[float] | None:
    """Return the values as a list; None if any of them is None."""
    found = list(values)
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def _sum(values: Iterable[float | None]) -> float | None:
    """Sum the values; None if there are none or any of them is None."""
    known = all_or_none(values)
    return sum(known) if known else None


PACKED: Final = ("pack", "pack_runs", "pack_mps", "worked_from", "worked_to")


def columns_packed(ranks: Sequence[RankRecord]) -> Row:
    """Columns of the runs that shared a job, and of the time at work.

    `pack` has their ids, None for a run alone. `worked_from` and `worked_to` are in seconds
    since 1970: first and last training step, or start and end of a command.
    """
    pack = next((record.packed for record in ranks if record.packed), None)
    began, ended = training_time(ranks)
    if not ended:
        began, ended = (datetime.fromisoformat(at).timestamp() for at in start_and_end(ranks))
    return {
        "pack": " ".join(pack.runs) if pack else None,
        "pack_runs": len(pack.runs) if pack else 1,
        "pack_mps": pack.mps if pack else None,
        "worked_from": began,
        "worked_to": ended,
    }


def start_and_end(ranks: Sequence[RankEnd]) -> tuple[str, str]:
    """Start time of the first rank and end time of the last one, as ISO 8601 text."""
    return (
        min((record.started_at for record in ranks), key=datetime.fromisoformat),
        max((record.ended_at for record in ranks), key=datetime.fromisoformat),
    )


GPUS: Final = (
    "gpus",
    "gpu_hours",
    "gpu_busy",
    "gpu_ours",
    "gpu_memory_peak_mib",
    "gpu_sm_mhz",
    "gpu_power_w",
    "gpu_energy_j",
    "gpu_j_per_epoch",
    "gpu_throttled",
    "gpu_throttled_by",
    "gpu_model",
)


def columns_gpus(
    run: Run,
    nodes: Sequence[NodeRecord],
    elapsed_s: float,
    seconds_per_epoch: float | None,
    training: tuple[float, float],
) -> Row:
    """Columns of the GPUs; None without a GPU or without a figure from NVML.

    `training`: its begin and end in seconds since 1970. The energy of an epoch is the mean power of
    all GPUs over the windows within, times its seconds; runs that share a GPU have even parts.
    """
    row: Row = dict.fromkeys(GPUS)
    asked = run.requested
    seen = [gpu for node in nodes for gpu in node.gpus or []]
    count = asked.gpus_per_node * asked.nodes if asked else len(seen)
    if count == 0:
        return row
    sharing = run.resources.runs_per_gpu
    row |= {"gpus": count, "gpu_hours": count / sharing * elapsed_s / 3600}
    if not seen:
        return row
    energy_j = _sum(joules for gpu in seen for joules in gpu.energy_j)
    watched_s = sum(sum(node.length_s) * len(node.gpus or []) for node in nodes)
    power_w = _sum(power for node in nodes for power in _powers_w(node, *training))
    shares = {reason: mean(nodes, _throttle_reason(reason)) for reason in seen[0].throttled}
    throttled = {reason: share for reason, share in shares.items() if share is not None}
    most = max(throttled, key=lambda reason: throttled[reason], default=None)
    return row | {
        "gpu_busy": mean(nodes, lambda gpu: gpu.busy),
        "gpu_ours": mean(nodes, lambda gpu: gpu.ours),
        "gpu_memory_peak_mib": max(
            (mib for gpu in seen for mib in gpu.memory_mib if mib is not None), default=None
        ),
        "gpu_sm_mhz": mean(nodes, lambda gpu: gpu.sm_mhz),
        "gpu_power_w": None if energy_j is None else ratio(energy_j, watched_s),
        "gpu_energy_j": energy_j,
        "gpu_j_per_epoch": (
            None
            if power_w is None or seconds_per_epoch is None
            else power_w * seconds_per_epoch / sharing
        ),
        "gpu_throttled": throttled[most] if most else None,
        "gpu_throttled_by": most if most and throttled[most] else None,
        "gpu_model": ", ".join(dict.fromkeys(gpu.name for gpu in seen)),
    }


def _throttle_reason(reason: str) -> Series:
    return lambda gpu: gpu.throttled[reason]


def _powers_w(node: NodeRecord, began: float, ended: float) -> Iterator[float | None]:
    """Yield the mean power in W of each GPU of a node between two moments.

    The moments are in seconds since 1970; None if the power is not known.
    """
    inside = windows_within(node, began, ended)
    for gpu in node.gpus or []:
        known = all_or_none(compress(gpu.energy_j, inside))
        yield None if known is None else ratio(sum(known), sum(compress(node.length_s, inside)))


# Of the nodes, whoever caused it: MiB/s, mean over time, all nodes.
MEASURED: Final = (
    "elapsed_s",
    "cores_allocated",
    "cores_usable",
    "cores_on_node",
    "cores_used",
    "cpu_s",
    "cpu_efficiency",
    "cpu_efficiency_peak",
    "peak_window_s",
    "cpu_efficiency_training",
    "others_cores",
    *TRAFFIC,
    "core_hours",
    "core_hours_wasted",
    "memory_peak_mib",
    "memory_efficiency",
    "memory_growth_mib",
    "time_efficiency",
    *WAITS,
    *GPUS,
    *PACKED,
    "node",
    "cpu_model",
    "commit",
    "python",
    "torch",
)


def measure(
    run: Run,
    ranks: Sequence[RankRecord],
    epoch_instances: int | None,
    nodes: Sequence[NodeRecord] = (),
) -> Row:
    """All resource figures of a run; None unless every rank left a record.

    `epoch_instances` is a full epoch's, positives and negatives, where the data is known.
    """
    if not has_all_ranks(ranks):
        nothing: Row = dict.fromkeys((*MEASURED, *TRAINED))
        nothing |= {"cores_allocated": run.requested and run.requested.cores}
        return nothing | columns(run, ranks)
    measured = _measured(run, ranks) | {
        "cpu_efficiency_training": efficiency_in_training(ranks, nodes),
        "others_cores": others_cores(nodes),
        **traffic(nodes),
        "memory_growth_mib": memory_growth(nodes),
    }
    figures = figures_trained(run, ranks, measured["cores_allocated"], epoch_instances)
    spans = (measured["elapsed_s"], figures["seconds_per_epoch"], training_time(ranks))
    on_gpus = columns_gpus(run, nodes, *spans)
    return measured | on_gpus | columns_packed(ranks) | figures | columns(run, ranks)


def _measured(run: Run, ranks: Sequence[RankRecord]) -> Row:
    elapsed_s = elapsed(ranks)
    allocated = sum(record.cores.allocated for record in ranks)
    cpu_s = sum(record.cpu.user_s + record.cpu.system_s for record in ranks)
    memory_mib = memory_peak(ranks)
    asked = run.requested
    return {
        "elapsed_s": elapsed_s,
        "cores_allocated": allocated,
        "cores_usable": usable(ranks),
        "cores_on_node": min(record.cores.on_node for record in ranks),
        "cores_used": ratio(cpu_s, elapsed_s),
        "cpu_s": cpu_s,
        "cpu_efficiency": ratio(cpu_s, elapsed_s * allocated),
        "cpu_efficiency_peak": peak(ranks),
        "peak_window_s": max(record.cpu.peak_window_s for record in ranks),
        "core_hours": allocated * elapsed_s / 3600,
        "core_hours_wasted": max(allocated * elapsed_s - cpu_s, 0.0) / 3600,
        "memory_peak_mib": memory_mib,
        "memory_efficiency": memory_mib / (asked.mem_gb * 1024) if asked else None,
        "time_efficiency": elapsed_s / (asked.timeout_min * 60) if asked else None,
        **columns_waits(ranks),
        "node": distinct(record.node for record in ranks),
        **{
            name: distinct(record.environment.get(name) for record in ranks)
            for name in ("cpu_model", "commit", "python", "torch")
        },
    }


def elapsed(ranks: Sequence[RankEnd]) -> float:
    """Seconds from the start of the first rank to the end of the last one."""
    started, ended = map(datetime.fromisoformat, start_and_end(ranks))
    return (ended - started).total_seconds()


def usable(ranks: Sequence[RankEnd]) -> float:
    """Number of cores that affinity and quota allow, summed over the nodes.

    Each node counts the union of its ranks' CPUs, and no more than its quota.

    The ranks of a node share its job's cgroup, so the largest quota seen is the node's.
    """
    nodes: dict[int, list[RankEnd]] = defaultdict(list)
    for record in ranks:
        nodes[record.node_index].append(record)
    total = 0.0
    for records in nodes.values():
        cpus = {cpu for record in records for cpu in record.cores.cpus}
        quotas = all_or_none(record.cores.quota for record in records)
        total += min(len(cpus), max(quotas)) if quotas else len(cpus)
        # Of further nodes that a command's processes were on, cores are known, not which CPUs.
        total += sum(max(0.0, each.cores.usable - len(each.cores.cpus)) for each in records)
    return total


def peak(ranks: Sequence[RankRecord]) -> float | None:
    """Mean of the ranks' peak CPU efficiencies, weighted by their cores; None if unknown.

    It is an upper bound, because the peaks need not coincide.
    """
    known = all_or_none(record.cpu.efficiency_peak for record in ranks)
    cores = [record.cores.allocated for record in ranks]
    return ratio(sum(map(mul, known, cores)), sum(cores)) if known else None


def memory_peak(ranks: Sequence[RankRecord]) -> float:
    """Peak memory in MiB on the node where the sum over its ranks is highest.

    It is an upper bound, because the ranks' peaks need not coincide.
    """
    nodes: dict[int, float] = defaultdict(float)
    for record in ranks:
        nodes[record.node_index] += record.memory.rss_peak_mib
    return max(nodes.values())


def warnings(ranks: Sequence[RankRecord], figures: Row) -> list[str]:
    """List the warnings of the ranks and those about the run's figures, each once."""
    found = [warning for record in ranks for warning in record.warnings]
    if not has_all_ranks(ranks):
        return list(dict.fromkeys(found))
    allocated, may_use = figures["cores_allocated"], figures["cores_usable"]
    efficiency = figures["cpu_efficiency"]
    if may_use < allocated:
        found.append(
            f"only {may_use:g} of {allocated:g} allocated cores were usable: affinity or the "
            "cgroup held the run back"
        )
    if efficiency is not None and efficiency > 1:
        found.append(
            f"CPU efficiency {efficiency:.0%} is above 100 %: more cores were used than allocated"
        )
    if len({part.model_sha256 for record in ranks if (part := record.training)}) > 1:
        found.append("the ranks ended with different parameters")
    return list(dict.fromkeys(found))


def distinct(values: Iterable[Any]) -> str | None:
    """Join the distinct values in order of appearance; None if there are none."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value)) or None
