"""Columns of speed, phases and quality.

Times are those of the run's last attempt alone: the work of an earlier one, perhaps on another
node, is in its checkpoint but not in this one's speed. Quality is the model's, however trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import compress
from operator import add, mul
from statistics import median
from typing import Any, Final

from hpcncf.collect.node_means import ratio
from hpcncf.job.plan import Run
from hpcncf.job.spec import Training
from hpcncf.monitor.memory_growth import steady
from hpcncf.records.schema import Epoch, NodeRecord, Phases, Progress, RankRecord, TrainingRecord

Row = dict[str, Any]

# The series must hold this share of the ranks' CPU time, or it misses some of the ranks.
COVERED: Final = 0.9
# More metrics of a command do not fit a line.
REPORTS_SHOWN: Final = 5

PHASES_TRAINED: Final = tuple(name.removesuffix("_s") for name in Phases.model_fields)
SYNC: Final = ("sync_over", "sync_ms_per_step", "sync_bytes_per_step")
EVALUATION: Final = ("seconds_per_evaluation", "evaluation_pairs_per_s")
TRAINED: Final = (
    "instances_per_s",
    "seconds_per_epoch",
    "core_s_per_epoch",
    "core_h_per_epoch",
    "gpu_h_per_epoch",
    "instances_per_epoch",
    "epoch_extrapolated",
    "epochs_done",
    "startup_s",
    "training_s",
    "evaluation_s",
    "checkpoint_s",
    *EVALUATION,
    *(f"{phase}_share" for phase in PHASES_TRAINED),
    *SYNC,
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
    "rows_per_step",
    "table_rows",
    "waiting_s",
    "resumed_epoch",
    "model_sha256",
)


def efficiency_in_training(
    ranks: Sequence[RankRecord], nodes: Sequence[NodeRecord]
) -> float | None:
    """CPU efficiency between the slowest rank's first and last training step, as a fraction.

    Start-up (imports, joining the group, loading) is left out; evaluation is not. None if no whole
    window lies there, or if the nodes' series missed some of the ranks.
    """
    seen_s = sum(sum(node.tree_cpu_s) for node in nodes)
    spent_s = sum(record.cpu.user_s + record.cpu.system_s for record in ranks)
    if not nodes or seen_s < COVERED * spent_s:
        return None
    cpu_s = length_s = 0.0
    for node in nodes:
        within = in_training(ranks, node)
        allocated = sum(r.cores.allocated for r in ranks if r.node_index == node.node_index)
        cpu_s += sum(compress(node.tree_cpu_s, within))
        length_s += sum(compress(node.length_s, within)) * allocated
    return ratio(cpu_s, length_s)


def in_training(ranks: Sequence[RankRecord], node: NodeRecord) -> list[bool]:
    """List for each window of the node's series whether it lies within the training."""
    return windows_within(node, *training_time(ranks))


def windows_within(node: NodeRecord, began: float, ended: float) -> list[bool]:
    """List for each window of the node's series whether it lies between two moments.

    The moments are in seconds since 1970.
    """
    offset = datetime.fromisoformat(node.started_at).timestamp()
    return [
        began <= offset + start and offset + start + length <= ended
        for start, length in zip(node.start_s, node.length_s, strict=False)
    ]


def training_time(ranks: Sequence[RankRecord]) -> tuple[float, float]:
    """Begin and end of training in seconds since 1970; (0, 0) if a rank did not train.

    These are the latest first step and the latest last step of a rank.
    """
    began, ended = 0.0, 0.0
    for record in ranks:
        if record.training is None:
            return 0.0, 0.0
        part = record.training
        first = datetime.fromisoformat(record.started_at).timestamp() + part.startup_s
        spent = part.training_s + part.evaluation_s + part.checkpoint_s
        began, ended = max(began, first), max(ended, first + spent)
    return began, ended


def memory_growth(nodes: Sequence[NodeRecord], begun_s: float = 0.0) -> float | None:
    """Steady growth of the processes' anonymous memory in MiB; None if there is none.

    It is that of the node with the strongest growth.
    """
    found = [
        steady(list(map(add, node.start_s, node.length_s)), node.anonymous_mib, begun_s)
        for node in nodes
        if node.anonymous_mib
    ]
    return max((each.mib for each in found if each), default=None)


def others_cores(nodes: Sequence[NodeRecord]) -> float | None:
    """Mean number of the run's cores that other processes used, summed over the nodes.

    None if it was not recorded.
    """
    means = [
        ratio(sum(map(mul, node.others_cores, node.length_s)), sum(node.length_s)) for node in nodes
    ]
    known = [mean for mean in means if mean is not None]
    return sum(known) if known else None


def figures_trained(
    run: Run, ranks: Sequence[RankRecord], cores: float, full_epoch: int | None
) -> Row:
    """Columns of training speed, phases and quality; None unless every rank trained.

    `full_epoch`: the instances of a whole epoch, if the data is known.
    """
    trained = [record.training for record in ranks if record.training]
    if len(trained) < len(ranks):
        return dict.fromkeys(TRAINED)
    counted_s = max(part.counted_s for part in trained)
    speed = ratio(sum(part.counted_instances for part in trained), counted_s)
    read = [part.rows_per_step for part in trained if part.rows_per_step is not None]
    waiting = [part.waiting_s for part in trained if part.waiting_s is not None]
    return {
        "instances_per_s": speed,
        **_epoch(run, trained, cores, speed, full_epoch),
        **{
            name: max(getattr(part, name) for part in trained)
            for name in ("startup_s", "training_s", "evaluation_s", "checkpoint_s")
        },
        **_evaluation(trained),
        **phase_shares(trained),
        **_sync(trained),
        "rows_per_step": sum(read) / len(read) if read else None,
        "table_rows": trained[0].table_rows,
        "waiting_s": max(waiting, default=None),
        **_quality(trained[0]),
    }


def _epoch(
    run: Run,
    trained: Sequence[TrainingRecord],
    cores: float,
    speed: float | None,
    full_epoch: int | None,
) -> Row:
    """Columns of the time and cost of a whole epoch at the run's speed, without warm-up.

    They are marked as extrapolated if `max_steps` or `max_s` cut every epoch short.
    """
    gpus = run.resources.gpus_per_node * run.resources.nodes / run.resources.runs_per_gpu
    training = run.training
    cut = training is not None and (training.max_steps or training.max_s) is not None
    whole = [
        epochs
        for epochs in zip(*map(_own_epochs, trained), strict=False)
        if not cut or epochs[0].instances == full_epoch
    ]
    instances = whole[0][0].instances if whole else full_epoch
    seconds = instances / speed if speed and instances and (whole or cut) else None
    return {
        "seconds_per_epoch": seconds,
        "core_s_per_epoch": None if seconds is None else cores * seconds,
        "core_h_per_epoch": None if seconds is None else cores * seconds / 3600,
        "gpu_h_per_epoch": gpus * seconds / 3600 if gpus and seconds is not None else None,
        "instances_per_epoch": instances,
        "epoch_extrapolated": seconds is not None and not whole,
        "epochs_done": _whole_epochs(training, trained[0].epochs, full_epoch),
    }


def _whole_epochs(
    training: Training | None, epochs: Sequence[Epoch], full_epoch: int | None
) -> int | None:
    """Count the epochs that `max_s` did not cut short; None without that setting."""
    if training is None or training.max_s is None:
        return None
    full = full_epoch or max((each.instances for each in epochs), default=0)
    return sum(each.instances == full for each in epochs)


def _own_epochs(part: TrainingRecord) -> list[Epoch]:
    """List the epochs that this attempt finished, without those of earlier attempts."""
    return [epoch for epoch in part.epochs if epoch.epoch >= (part.resumed_epoch or 0)]


def _evaluation(trained: Sequence[TrainingRecord]) -> Row:
    """Median seconds per evaluation and median number of pairs scored per second.

    The time is the slowest rank's, the pairs are those of all ranks. None without evaluation;
    the speed is None if the record lacks the pairs.
    """
    evaluations = [
        (max(each.evaluation_s for each in epochs), epochs[0].evaluation_pairs)
        for epochs in zip(*map(_own_epochs, trained), strict=False)
        if epochs[0].hr10 is not None
    ]
    if not evaluations:
        return dict.fromkeys(EVALUATION)
    speeds = [pairs / seconds for seconds, pairs in evaluations if pairs and seconds]
    figures = (median(seconds for seconds, _ in evaluations), median(speeds) if speeds else None)
    return dict(zip(EVALUATION, figures, strict=True))


def phase_shares(trained: Sequence[TrainingRecord]) -> Row:
    """Share of each phase in the counted steps' time, over all ranks."""
    seconds = {
        phase: sum(getattr(part.phases, f"{phase}_s") for part in trained)
        for phase in PHASES_TRAINED
    }
    total = sum(seconds.values())
    return {f"{phase}_share": ratio(spent, total) for phase, spent in seconds.items()}


def _sync(trained: Sequence[TrainingRecord]) -> Row:
    """Columns of synchronisation per step: transport, milliseconds and bytes.

    They are means over the ranks' steps, and None for a single rank.
    """
    syncs = [part.sync for part in trained if part.sync]
    steps = sum(part.counted_steps for part in trained)
    if not syncs or not steps:
        return dict.fromkeys(SYNC)
    seconds, sent = sum(each.seconds for each in syncs), sum(each.bytes for each in syncs)
    return dict(zip(SYNC, (syncs[0].over, 1000 * seconds / steps, sent / steps), strict=True))


def _quality(first: TrainingRecord) -> Row:
    scored = [each for each in first.epochs if each.hr10 is not None]
    shown = scored or first.epochs  # an epoch that was cut short has no score
    last = shown[-1] if shown else None
    baseline = first.baseline or {}
    plain = ("parameters", "warmup_steps", "unseen_test_rows", "resumed_epoch", "model_sha256")
    scores = ("loss", "hr10", "ndcg10", "mrr", "hr10_unseen")
    return {
        **{name: getattr(first, name) for name in plain},
        **{name: getattr(last, name, None) for name in scores},
        "hr10_best": max((e.hr10 for e in first.epochs if e.hr10 is not None), default=None),
        "ndcg10_best": max((e.ndcg10 for e in first.epochs if e.ndcg10 is not None), default=None),
        "baseline_hr10": baseline.get("hr10"),
        "baseline_ndcg10": baseline.get("ndcg10"),
    }


def reports(progress: Progress) -> list[str]:
    """Format a command's latest reports: `epoch 3/10`, `loss 0.25`."""
    shown = dict(progress.reported)
    epoch, epochs = shown.pop("epoch", None), shown.pop("epochs", None)
    shown.pop("instances_per_s", None)
    first = [] if epoch is None else [f"epoch {epoch}" + (f"/{epochs}" if epochs else "")]
    return first + [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in list(shown.items())[:REPORTS_SHOWN]
    ]
