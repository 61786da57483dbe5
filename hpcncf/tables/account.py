"""One run's account: what the records of its ranks add up to. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median
from typing import Any, Final

from hpcncf.plan import Run
from hpcncf.records import NodeRecord, RankRecord, TrainingRecord
from hpcncf.tables import watched

Row = dict[str, Any]

PHASES: Final = ("input", "forward", "backward", "sync", "optimizer", "other")
MEASURED: Final = (
    "elapsed_s",
    "cores_allocated",
    "cores_usable",
    "cores_used",
    "cpu_s",
    "cpu_efficiency",
    "cpu_efficiency_peak",
    "peak_window_s",
    "cpu_efficiency_training",
    "others_cores",
    "core_hours",
    "core_hours_wasted",
    "memory_peak_mib",
    "memory_efficiency",
    "time_efficiency",
    "node",
    "cpu_model",
    "commit",
    "python",
    "torch",
)
TRAINED: Final = (
    "instances_per_s",
    "seconds_per_epoch",
    "core_s_per_epoch",
    "instances_per_epoch",
    "epoch_extrapolated",
    "startup_s",
    "training_s",
    "evaluation_s",
    "checkpoint_s",
    *(f"{phase}_share" for phase in PHASES),
    "parameters",
    "warmup_steps",
    "loss",
    "hr10",
    "ndcg10",
    "mrr",
    "hr10_unseen",
    "hr10_best",
    "ndcg10_best",
    "baseline_hr10",
    "baseline_ndcg10",
    "unseen_test_rows",
    "resumed_epoch",
    "model_sha256",
)


def settle(
    run: Run,
    ranks: Sequence[RankRecord],
    epoch_instances: int | None,
    nodes: Sequence[NodeRecord] = (),
) -> Row:
    """The run's figures; all None unless every one of its ranks left a record.

    `epoch_instances` is a full epoch's, positives and negatives, where the data is known.
    """
    if not is_whole(ranks):
        nothing: Row = dict.fromkeys((*MEASURED, *TRAINED))
        return nothing | {"cores_allocated": None if is_command(run) else run.resources.cores}
    measured = _measured(run, ranks) | {
        "cpu_efficiency_training": watched.efficiency_in_training(ranks, nodes),
        "others_cores": watched.others_cores(nodes),
    }
    return measured | _trained(run, ranks, measured["cores_allocated"], epoch_instances)


def is_whole(ranks: Sequence[RankRecord]) -> bool:
    return bool(ranks) and {record.rank for record in ranks} == set(range(ranks[0].world_size))


def is_command(run: Run) -> bool:
    return not isinstance(run.workload, str)


def _measured(run: Run, ranks: Sequence[RankRecord]) -> Row:
    elapsed_s = elapsed(ranks)
    allocated = sum(record.cores.allocated for record in ranks)
    cpu_s = sum(record.cpu.user_s + record.cpu.system_s for record in ranks)
    memory_mib = memory_peak(ranks)
    asked = None if is_command(run) else run.resources  # nobody asked Slurm for a plain command
    return {
        "elapsed_s": elapsed_s,
        "cores_allocated": allocated,
        "cores_usable": usable(ranks),
        "cores_used": watched.ratio(cpu_s, elapsed_s),
        "cpu_s": cpu_s,
        "cpu_efficiency": watched.ratio(cpu_s, elapsed_s * allocated),
        "cpu_efficiency_peak": peak(ranks),
        "peak_window_s": max(record.cpu.peak_window_s for record in ranks),
        "core_hours": allocated * elapsed_s / 3600,
        "core_hours_wasted": max(allocated * elapsed_s - cpu_s, 0.0) / 3600,
        "memory_peak_mib": memory_mib,
        "memory_efficiency": memory_mib / (asked.mem_gb * 1024) if asked else None,
        "time_efficiency": elapsed_s / (asked.timeout_min * 60) if asked else None,
        "node": _distinct(record.node for record in ranks),
        **{
            name: _distinct(record.environment.get(name) for record in ranks)
            for name in ("cpu_model", "commit", "python", "torch")
        },
    }


def elapsed(ranks: Sequence[RankRecord]) -> float:
    """Seconds from the first rank's start to the last one's end."""
    started = min(datetime.fromisoformat(record.started_at) for record in ranks)
    ended = max(datetime.fromisoformat(record.ended_at) for record in ranks)
    return (ended - started).total_seconds()


def usable(ranks: Sequence[RankRecord]) -> float:
    """Cores that affinity and quota allow: each node's union of CPUs, no more than its quota.

    The ranks of a node share its job's cgroup, so the largest quota seen is the node's.
    """
    nodes: dict[int, list[RankRecord]] = defaultdict(list)
    for record in ranks:
        nodes[record.node_index].append(record)
    return sum(_usable_on_node(records) for records in nodes.values())


def _usable_on_node(ranks: Sequence[RankRecord]) -> float:
    cpus = {cpu for record in ranks for cpu in record.cores.cpus}
    quotas = [record.cores.quota for record in ranks if record.cores.quota is not None]
    return min(len(cpus), max(quotas)) if len(quotas) == len(ranks) else float(len(cpus))


def peak(ranks: Sequence[RankRecord]) -> float | None:
    """The ranks' peaks weighted by their cores: an upper bound, they need not coincide."""
    weighted = [
        record.cpu.efficiency_peak * record.cores.allocated
        for record in ranks
        if record.cpu.efficiency_peak is not None
    ]
    if len(weighted) < len(ranks):
        return None
    return watched.ratio(sum(weighted), sum(record.cores.allocated for record in ranks))


def memory_peak(ranks: Sequence[RankRecord]) -> float:
    """MiB on the node with the most: the sum of its ranks' peaks, an upper bound too."""
    nodes: dict[int, float] = defaultdict(float)
    for record in ranks:
        nodes[record.node_index] += record.memory.rss_peak_mib
    return max(nodes.values())


def _trained(
    run: Run, ranks: Sequence[RankRecord], cores: float, epoch_instances: int | None
) -> Row:
    trained = [record.training for record in ranks if record.training]
    if len(trained) < len(ranks):
        return dict.fromkeys(TRAINED)
    rate = watched.ratio(
        sum(part.counted_instances for part in trained), max(part.counted_s for part in trained)
    )
    seconds, extrapolated = _epoch_s(run, trained, rate, epoch_instances)
    return {
        "instances_per_s": rate,
        "seconds_per_epoch": seconds,
        "core_s_per_epoch": None if seconds is None else cores * seconds,
        "instances_per_epoch": epoch_instances if extrapolated else _instances(trained[0]),
        "epoch_extrapolated": extrapolated,
        **{
            name: max(getattr(part, name) for part in trained)
            for name in ("startup_s", "training_s", "evaluation_s", "checkpoint_s")
        },
        **phase_shares(trained),
        **_quality(trained[0]),
    }


def _epoch_s(
    run: Run, trained: Sequence[TrainingRecord], rate: float | None, epoch_instances: int | None
) -> tuple[float | None, bool]:
    """Seconds of a whole epoch's training, and whether they are extrapolated from a part of it."""
    if run.training is not None and run.training.max_steps is not None:
        whole = epoch_instances / rate if epoch_instances and rate else None
        return whole, whole is not None
    epochs = zip(*(part.epochs for part in trained), strict=False)
    slowest = [max(epoch.training_s for epoch in ranks) for ranks in epochs]
    return (median(slowest) if slowest else None), False


def _instances(first: TrainingRecord) -> int | None:
    return first.epochs[0].instances if first.epochs else None


def phase_shares(trained: Sequence[TrainingRecord]) -> Row:
    """Each phase's share of the counted steps' time, over all ranks."""
    seconds = {
        phase: sum(getattr(part.phases, f"{phase}_s") for part in trained) for phase in PHASES
    }
    total = sum(seconds.values())
    return {f"{phase}_share": watched.ratio(spent, total) for phase, spent in seconds.items()}


def _quality(first: TrainingRecord) -> Row:
    last = first.epochs[-1] if first.epochs else None
    baseline = first.baseline or {}
    return {
        "parameters": first.parameters,
        "warmup_steps": first.warmup_steps,
        **{
            name: getattr(last, name, None)
            for name in ("loss", "hr10", "ndcg10", "mrr", "hr10_unseen")
        },
        "hr10_best": max((e.hr10 for e in first.epochs if e.hr10 is not None), default=None),
        "ndcg10_best": max((e.ndcg10 for e in first.epochs if e.ndcg10 is not None), default=None),
        "baseline_hr10": baseline.get("hr10"),
        "baseline_ndcg10": baseline.get("ndcg10"),
        "unseen_test_rows": first.unseen_test_rows,
        "resumed_epoch": first.resumed_epoch,
        "model_sha256": first.model_sha256,
    }


def warnings(ranks: Sequence[RankRecord], figures: Row) -> list[str]:
    """What makes the run's figures worth less: the ranks' own warnings, and what they show."""
    said = [warning for record in ranks for warning in record.warnings]
    if is_whole(ranks):
        said += [text for holds, text in _findings(ranks, figures) if holds]
    return list(dict.fromkeys(said))


def _findings(ranks: Sequence[RankRecord], figures: Row) -> list[tuple[bool, str]]:
    allocated, may_use = figures["cores_allocated"], figures["cores_usable"]
    efficiency = figures["cpu_efficiency"]
    digests = {part.model_sha256 for record in ranks if (part := record.training)}
    return [
        (
            may_use < allocated,
            f"only {may_use:g} of {allocated:g} allocated cores were usable: "
            "affinity or the cgroup held the run back",
        ),
        (
            efficiency is not None and efficiency > 1,
            f"CPU efficiency {efficiency or 0:.0%} is above 100 %: more cores were used "
            "than allocated",
        ),
        (len(digests) > 1, "the ranks ended with different parameters"),
    ]


def _distinct(values: Iterable[Any]) -> str | None:
    """Each value once, in order; None where there is none."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value)) or None
