"""Evidence from a run's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any

from pydantic import ValidationError

from hpcncf.collect.resource_columns import all_or_none, elapsed, memory_peak, usable
from hpcncf.collect.training_columns import (
    efficiency_in_training,
    memory_growth,
    others_cores,
    ratio,
)
from hpcncf.job.spec import Resources, Settings, Training
from hpcncf.records.schema import NodeRecord, RankRecord, TrainingRecord
from hpcncf_analysis.diagnosis.evidence import CoreCounts, Evidence
from hpcncf_analysis.diagnosis.rules_cores import mean_gpus
from hpcncf_analysis.diagnosis.rules_time import (
    Steps,
    merge_steps,
    rank_times,
    running_step,
    steps_of_rank,
)
from hpcncf_analysis.diagnosis.traffic import traffic_of


def evidence(ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]) -> Evidence:
    """Of one attempt at one run; `ranks` are not empty."""
    assert ranks
    parts = [steps_of_rank(record) for record in ranks]
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
        ranks=tuple(map(rank_times, ranks, parts)),
        world_size=ranks[0].world_size,
        used_in_training=None if efficiency is None else efficiency * allocated,
        affinity_changed=any(record.cores.affinity_changed for record in ranks),
        failed=_failed(ranks),
        program=program,
        **_settings(ranks[0]),
        **_spent(ranks, elapsed_s),
        **merge_steps(parts),
        **_tables(ranks[0], parts[0]),
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


def _settings(first: RankRecord) -> dict[str, Any]:
    training = _valid(first.run.get("training"), Training)
    loads = training.get("loader", "vectorized") not in ("vectorized", "device")
    return {
        "trained": first.training is not None,
        "training": training,
        "resources": _valid(first.run.get("resources"), Resources),
        "threads": first.training.threads if first.training else None,
        **(_epochs(first.training) if first.training else {}),
        "workers": int(training.get("num_workers") or 0) if loads else 0,
    }


def _valid(section: Any, model: type[Settings]) -> dict[str, Any]:
    """The settings of a record's section, without those that no job file could have."""
    if not isinstance(section, dict):
        return {}
    try:
        model.model_validate({key: section[key] for key in model.model_fields if key in section})
    except ValidationError as error:
        wrong = {problem["loc"][0] for problem in error.errors() if problem["loc"]}
        return {key: value for key, value in section.items() if key not in wrong}
    return section


def _epochs(record: TrainingRecord) -> dict[str, Any]:
    own = [epoch for epoch in record.epochs if epoch.epoch >= (record.resumed_epoch or 0)]
    return {
        "epochs": len(own),
        "first_batch_s": sum(epoch.first_batch_s for epoch in own),
        "running_step": running_step(record),
        "parameters": record.parameters,
    }


def _spent(ranks: Sequence[RankRecord], elapsed_s: float) -> dict[str, Any]:
    """Sums over the ranks, None unless each has the figure; a cgroup's figures are its largest."""
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
    largest = {
        "throttled_s": [record.cpu.throttled_s for record in ranks],
        "memory_pressure_s": [record.memory.pressure_s for record in ranks],
    }
    involuntary = sum(record.cpu.context_switches_involuntary for record in ranks)
    limits = [record.memory.limit_mib for record in ranks if record.memory.limit_mib]
    return {
        **{name: sum(known) if (known := all_or_none(s)) else None for name, s in sums.items()},
        **{
            name: max((value for value in values if value is not None), default=None)
            for name, values in largest.items()
        },
        "involuntary_per_s": involuntary / elapsed_s if elapsed_s > 0 else None,
        "memory_peak_mib": memory_peak(ranks),
        "memory_limit_mib": min(limits, default=None),
    }


def _tables(first: RankRecord, steps: Steps) -> dict[str, Any]:
    """Rows that a step reads and rows there are, estimated if an older record lacks them; and the
    exchange of ranks."""
    training = first.training
    read, rows = steps.rows_per_step, steps.table_rows
    estimated = training is not None and (read is None or rows is None)
    if estimated and training:
        read, rows = estimated_rows(first.run, training)
    found: dict[str, Any] = {
        "rows_per_step": read,
        "table_rows": None if rows is None else int(rows),
        "rows_estimated": estimated and read is not None,
    }
    if training and training.sync:
        per_step = ratio(training.sync.bytes, training.counted_steps)
        found |= {"sync_how": training.sync.how, "sync_over": training.sync.over}
        found["sync_bytes_per_step"] = per_step
    return found


def estimated_rows(
    run: Mapping[str, Any], record: TrainingRecord
) -> tuple[float | None, float | None]:
    """Rows a step reads at most, and rows of the tables, from the settings, for older records.

    A batch of B positives with n negatives each reads B users and B (1 + n) items at most; the
    tables have the parameters that are not the layers', whose context columns are not known here:
    a few rows too many.
    """
    model, training = run.get("model"), run.get("training")
    if not model or not training:
        return None, None
    width = model["gmf_width"] + model["mlp_width"]
    inputs, layers = 2 * model["mlp_width"], 0
    for output in model["layers"]:
        layers, inputs = layers + (inputs + 1) * output, output
    rows = (record.parameters - layers) / width
    shape = run.get("resources") or {}
    ranks = int(shape.get("nodes", 1) * shape.get("tasks_per_node", 1))
    batch = training.get("batch_size_per_rank") or (
        (training.get("global_batch_size") or 256) / ranks
    )
    return min(rows, batch * (2 + training["negatives"])), rows
