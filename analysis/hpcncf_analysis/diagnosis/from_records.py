"""Gather the evidence on a run from its records.

Older records lack some figures, and a command's lack the training; phases that a command reports
stand in for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, count
from operator import mul
from statistics import median
from typing import Any, Final

from pydantic import ValidationError

from hpcncf.collect.node_means import mean_over_windows, ratio
from hpcncf.collect.resource_columns import (
    TIMED,
    all_or_none,
    elapsed,
    is_number,
    memory_peak,
    usable,
)
from hpcncf.collect.training_columns import (
    efficiency_in_training,
    in_training,
    memory_growth,
    others_cores,
)
from hpcncf.job.spec import Resources, Settings, Training
from hpcncf.records.schema import NodeRecord, RankRecord, TrainingRecord
from hpcncf_analysis.diagnosis.evidence import CoreCounts, Evidence, Gpus, Traffic
from hpcncf_analysis.diagnosis.facts import RankTimes

SECONDS: Final = ("startup_s", "training_s", "evaluation_s", "checkpoint_s")
FEW: Final = 10
"""Sums of steps below which their median is that of single ones."""

Figures = Mapping[str, float | None]
"""What one rank counted: seconds of phases (`TIMED`) and of `SECONDS`, `instances`, `steps`,
`rows_per_step`, `table_rows`."""


def evidence(ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> Evidence:
    """Gather the evidence on one attempt of a run; `ranks` must not be empty."""
    assert ranks
    figures = [figures_of(record) for record in ranks]
    efficiency = efficiency_in_training(ranks, nodes)
    allocated = sum(record.cores.allocated for record in ranks)
    cpu_s = sum(record.cpu.user_s + record.cpu.system_s for record in ranks)
    elapsed_s = elapsed(ranks)
    program = tuple(each for record in ranks for each in record.program)
    # Of the run's time: a launcher, as torchrun, takes seconds before its ranks begin.
    begun = [elapsed_s - each.elapsed_s + each.startup_s for each in program if each.steps]
    return Evidence(
        run_id=ranks[0].run_id,
        elapsed_s=elapsed_s,
        cores=CoreCounts(allocated, usable(ranks), ratio(cpu_s, elapsed_s)),
        ranks=tuple(map(_rank_times, ranks, figures)),
        world_size=ranks[0].world_size,
        used_in_training=None if efficiency is None else efficiency * allocated,
        affinity_changed=any(record.cores.affinity_changed for record in ranks),
        failed=_failed(ranks),
        program=program,
        **_settings(ranks[0]),
        **_training(ranks[0].training),
        **_spent(ranks, elapsed_s),
        **_steps(figures),
        others_cores=others_cores(nodes),
        memory_growth_mib=memory_growth(nodes, max(begun, default=0.0)),
        steal=ratio(
            sum(sum(map(mul, node.steal, node.length_s)) for node in nodes),
            sum(sum(node.length_s) for node in nodes),
        ),
        gpus=mean_gpus(nodes, ranks),
        traffic=traffic_of(nodes, ranks),
    )


def _failed(ranks: Sequence[RankRecord]) -> str | None:
    for record in ranks:
        if record.outcome != "completed":
            error = record.error or {}
            why = f": {error['type']}: {error['message']}" if "message" in error else ""
            return f"rank {record.rank} {record.outcome}{why}"
    return None


def figures_of(record: RankRecord) -> Figures:
    """Figures of a rank by name, as counted by our own training or reported by a command."""
    trained = record.training
    if trained:
        phases = {name: getattr(trained.phases, name) for name in TIMED}
        seconds = {name: getattr(trained, name) for name in SECONDS}
        return (
            phases
            | seconds
            | {
                "instances": trained.counted_instances,
                "steps": trained.counted_steps,
                "rows_per_step": trained.rows_per_step,
                "table_rows": trained.table_rows,
            }
        )
    figures = {
        name: float(value)
        for name, value in record.reported.items()
        if is_number(value) and value >= 0
    }
    if set(TIMED) & set(figures):
        figures["training_s"] = _steps_s(figures)
    if record.run.get("training"):
        figures["startup_s"] = record.elapsed_s  # a training that ended before its first step
    return figures


def _steps_s(figures: Figures) -> float:
    return sum(seconds or 0.0 for name, seconds in figures.items() if name in TIMED)


def _rank_times(record: RankRecord, figures: Figures) -> RankTimes:
    steps_s, instances = _steps_s(figures), figures.get("instances")
    return RankTimes(
        rank=record.rank,
        node=record.node,
        steps_s=steps_s if steps_s > 0 else None,
        sync_s=figures.get("sync_s") if steps_s > 0 else None,
        instances=None if instances is None else int(instances),
        cpu_s=record.cpu.user_s + record.cpu.system_s,
    )


def _steps(ranks: Sequence[Figures]) -> dict[str, Any]:
    """Combine the ranks' step figures: the largest times and the phases' shares of all steps.

    Row counts are those of rank 0.
    """
    total_s = sum(map(_steps_s, ranks))
    names = sorted({name for figures in ranks for name in figures if name in TIMED})
    phases = {name: sum(figures.get(name) or 0.0 for figures in ranks) for name in names}
    steps, rows = _largest(figures.get("steps") for figures in ranks), ranks[0].get("table_rows")
    return {
        **{name: _largest(figures.get(name) for figures in ranks) for name in SECONDS},
        "phases": {name.removesuffix("_s"): s / total_s for name, s in phases.items()}
        if total_s > 0
        else {},
        "counted_steps": None if steps is None else int(steps),
        "rows_per_step": ranks[0].get("rows_per_step"),
        "table_rows": None if rows is None else int(rows),
    }


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _settings(first: RankRecord) -> dict[str, Any]:
    training = _valid(first.run.get("training"), Training)
    loads = training.get("loader", "vectorized") not in ("vectorized", "device")
    return {
        "training": training,
        "resources": _valid(first.run.get("resources"), Resources),
        "workers": int(training.get("num_workers") or 0) if loads else 0,
    }


def _valid(section: Any, model: type[Settings]) -> dict[str, Any]:
    """Return a record's section of settings without values that no job file could have."""
    if not isinstance(section, dict):
        return {}
    try:
        model.model_validate({key: section[key] for key in model.model_fields if key in section})
    except ValidationError as error:
        wrong = {problem["loc"][0] for problem in error.errors() if problem["loc"]}
        return {key: value for key, value in section.items() if key not in wrong}
    return section


def _training(record: TrainingRecord | None) -> dict[str, Any]:
    """Facts on our own training: epochs, threads, size and exchange; empty for a command."""
    if record is None:
        return {}
    own = [epoch for epoch in record.epochs if epoch.epoch >= (record.resumed_epoch or 0)]
    sync = record.sync
    return {
        "trained": True,
        "threads": record.threads,
        "epochs": len(own),
        "first_batch_s": sum(epoch.first_batch_s for epoch in own),
        "running_step": running_step(record),
        "parameters": record.parameters,
        "sync_how": sync.how if sync else None,
        "sync_over": sync.over if sync else None,
        "sync_bytes_per_step": ratio(sync.bytes, record.counted_steps) if sync else None,
    }


def running_step(record: TrainingRecord) -> float | None:
    """Length of steps that do not begin an epoch, relative to the mean counted step.

    Warm-up is left out.

    The median of the sums in the record that hold no first step; None where fewer than `FEW` do.
    """
    every, an_epoch = record.batches.every, record.epochs[0].steps if record.epochs else 0
    if an_epoch <= 0 or not record.counted_steps or record.counted_s <= 0:
        return None
    done = record.resumed_step or 0
    apart = [
        seconds / every
        for at, seconds in zip(count(0, every), record.batches.seconds, strict=False)
        if at >= max(1, record.warmup_steps) and -(at + done) % an_epoch >= every
    ]
    if len(apart) < FEW:
        return None
    return median(apart) * record.counted_steps / record.counted_s


def _spent(ranks: Sequence[RankRecord], elapsed_s: float) -> dict[str, Any]:
    """Resource use summed over the ranks; None where a rank lacks the figure.

    Figures of a cgroup are not summed: the largest counts.
    """
    sums: dict[str, list[float | None]] = {
        "runnable": [record.cpu.runnable_mean for record in ranks],
        "runqueue_s": [record.cpu.runqueue_s for record in ranks],
        "children_s": [record.cpu.children_s for record in ranks],
        "iowait_s": [record.cpu.iowait_s for record in ranks],
        "system_s": [record.cpu.system_s for record in ranks],
        "read_mib": [record.io.read_mib for record in ranks],
        "blocked_s": [record.io.blocked_s for record in ranks],
        "major_faults": [record.memory.major_faults for record in ranks],
        "swap_peak_mib": [record.memory.swap_peak_mib for record in ranks],
    }
    involuntary = sum(record.cpu.context_switches_involuntary for record in ranks)
    limits = [record.memory.limit_mib for record in ranks if record.memory.limit_mib]
    return {
        **{name: sum(known) if (known := all_or_none(s)) else None for name, s in sums.items()},
        "throttled_s": _largest(record.cpu.throttled_s for record in ranks),
        "memory_pressure_s": _largest(record.memory.pressure_s for record in ranks),
        "involuntary_per_s": involuntary / elapsed_s if elapsed_s > 0 else None,
        "memory_peak_mib": memory_peak(ranks),
        "memory_limit_mib": min(limits, default=None),
    }


def mean_gpus(nodes: Sequence[NodeRecord], ranks: Sequence[RankRecord] = ()) -> Gpus | None:
    """Mean use of all GPUs of a run; None without GPUs or figures.

    Of the windows between the ranks' first step and their last, if there are any: a start of a
    minute is not the GPU's idleness. Of a command, of all of its time. None without GPUs.
    """
    within = [in_training(ranks, node) for node in nodes]
    training = any(map(any, within))
    if not training:
        within = [[True] * len(node.length_s) for node in nodes]
    busy, joules, length_s, number = list[float](), list[float](), 0.0, 0
    for node, chosen in zip(nodes, within, strict=True):
        lengths = list(compress(node.length_s, chosen))
        for gpu in node.gpus or []:
            number += 1
            length_s += sum(lengths)
            joules += [each for each in compress(gpu.energy_j, chosen) if each is not None]
            ours = mean_over_windows(compress(gpu.ours, chosen), lengths)
            share = mean_over_windows(compress(gpu.busy, chosen), lengths) if ours is None else ours
            busy += [] if share is None else [share]
    if not busy:
        return None
    watts = sum(joules) / length_s if joules and length_s else None
    return Gpus(number, sum(busy) / len(busy), watts, training)


def traffic_of(nodes: Sequence[NodeRecord], ranks: Sequence[RankRecord]) -> Traffic | None:
    """Network and disk rates of the busiest node; None without a recorded series."""
    found = []
    for node in nodes:
        within = in_training(ranks, node)
        within = within if any(within) else [True] * len(node.length_s)
        length_s = sum(compress(node.length_s, within))
        if length_s > 0:
            series = (node.network_mib, node.loopback_mib, node.disk_mib)
            network, loopback, disk = (sum(compress(each, within)) / length_s for each in series)
            found.append(Traffic(network, loopback, disk, node.network_link_mib_s))
    return max(found, key=lambda each: (each.network, each.disk), default=None)
