"""What each table's row says of a run, a rank, a core or an epoch. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import mul
from typing import Any, Final

from hpcncf import plan
from hpcncf.ncf.data.manifest import Outline
from hpcncf.plan import Run
from hpcncf.records import Epoch, NodeRecord, Part, Progress, RankRecord, Sync, TrainingRecord
from hpcncf.spec import Model, Resources, Training
from hpcncf.state.status import RunState
from hpcncf.tables import account, history, watched
from hpcncf.tables.account import MEASURED
from hpcncf.tables.history import TOTALS
from hpcncf.tables.trained import PHASES_TRAINED, TRAINED, Row

IDENTITY: Final = (
    "run_id",
    "repeat",
    "state",
    "reason",
    "stale",
    "retired",
    "baseline",
    "attempt",
    "progress",
    "config",
    "varied",
    "workload",
    "command",
    "by_hand",
)
DATA: Final = ("data_title", "data_key", "test_rows")
RANK: Final = (
    "run_id",
    "attempt",
    "rank",
    "local_rank",
    "world_size",
    "node",
    "node_index",
    "launched_by",
    "slurm_job_id",
    "outcome",
    "exit_code",
    "error",
    "started_at",
    "ended_at",
    "elapsed_s",
)
CORE: Final = (
    "run_id",
    "attempt",
    "node",
    "node_index",
    "cpu",
    "elapsed_s",
    *(f"{whose}_{what}" for whose in ("busy", "ours", "others") for what in ("mean", "peak")),
)
EPOCH: Final = ("run_id", "attempt", *Epoch.model_fields)
# More of what a command reported do not fit a line.
MOST_REPORTED: Final = 5
RANK_PARTS: Final = ("cores", "cpu", "memory", "io")
TRAINING_LISTS: Final = {"phases", "sync", "epochs", "batches", "baseline"}
SYNC: Final = [name for name in Sync.model_fields if name != "seconds"]


def _scalars() -> list[str]:
    return [name for name in TrainingRecord.model_fields if name not in TRAINING_LISTS]


def _rank_columns() -> list[str]:
    parts = [
        f"{part}_{name}"
        for part in RANK_PARTS
        for name in _fields(RankRecord.model_fields[part].annotation)
    ]
    times, sync = (f"{phase}_s" for phase in PHASES_TRAINED), (f"sync_{name}" for name in SYNC)
    return [*RANK, *parts, *_scalars(), *times, *sync, "warnings"]


def _fields(kind: Any) -> list[str]:
    assert issubclass(kind, Part)
    return list(kind.model_fields)


def _settings_columns() -> list[str]:
    resources = ["nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "world_size"]
    others = [*Resources.model_fields, *Training.model_fields, "batch", *Model.model_fields]
    return list(dict.fromkeys([*resources, *others]))


COLUMNS: Final[dict[str, list[str]]] = {
    "runs": [
        *IDENTITY,
        *_settings_columns(),
        *DATA,
        *MEASURED,
        *TOTALS,
        *TRAINED,
        "outlier",
        "warnings",
    ],
    "attempts": list(history.ATTEMPT),
    "ranks": _rank_columns(),
    "cores": list(CORE),
    "epochs": list(EPOCH),
}


def of_run(
    state: RunState,
    ranks: Sequence[RankRecord],
    nodes: Sequence[NodeRecord],
    data: Outline | None,
    tried: Sequence[Row] = (),
) -> Row:
    """One planned run: its settings, its state, and its figures as far as there are any.

    `tried`: a row for each of its attempts.
    """
    run = state.run
    figures = account.settle(run, ranks, _epoch_instances(run, data), nodes)
    return (
        {
            "run_id": run.id,
            "repeat": run.repeat,
            "state": state.state,
            "reason": state.reason,
            "stale": state.stale,
            "retired": run.retired,
            "baseline": run.baseline,
            "attempt": state.attempt,
            "progress": _progress(state.progress) if state.state == "running" else None,
            "config": plan.configuration(run),
            "varied": run.varied,
            "workload": run.workload if isinstance(run.workload, str) else "command",
            "command": " ".join(run.words) or None,
            "by_hand": run.by_hand,
        }
        | settings(run, ranks)
        | {
            "data_title": data.title if data else None,
            "data_key": run.data_key,
            "test_rows": data.test_rows if data else None,
        }
        | figures
        | history.totals(tried)
        | {"warnings": account.warnings(ranks, figures) + history.silent(tried)}
    )


def _epoch_instances(run: Run, data: Outline | None) -> int | None:
    if data is None or run.training is None:
        return None
    return data.train_rows * (1 + run.training.negatives)


def settings(run: Run, ranks: Sequence[RankRecord]) -> Row:
    """Every setting of the run; threads as the ranks really had them, once they tell."""
    resources: Row = run.resources.model_dump(mode="json")
    row = resources | {"world_size": run.resources.world_size}
    if run.by_hand:  # it asked for neither: these are the plan's defaults
        row |= {"mem_gb": None, "timeout_min": None}
    if run.training is None:
        return row
    row |= run.training.model_dump(mode="json")
    threads = {record.training.threads for record in ranks if record.training}
    asked = run.training.threads
    return (
        row
        | {
            "device": run.training.device_for(run.resources),
            "backend": run.training.backend_for(run.resources),
            "threads": max(threads, default=None if asked == "auto" else asked),
            "batch": run.training.batch_over_ranks(run.resources.world_size),
        }
        | (run.model.model_dump(mode="json") if run.model else {})
    )


def _progress(progress: Progress | None) -> str | None:
    if progress is None:
        return None
    if progress.phase == "command":
        return ", ".join([f"{progress.elapsed_s:.0f} s", *reports(progress)])
    steps = f"step {progress.step} of {progress.steps_per_epoch}"
    return f"epoch {progress.epoch + 1} of {progress.epochs}, {progress.phase}, {steps}"


def reports(progress: Progress) -> list[str]:
    """What a command told of itself so far: `epoch 3/10`, `loss 0.25`."""
    shown = dict(progress.reported)
    epoch, epochs = shown.pop("epoch", None), shown.pop("epochs", None)
    shown.pop("instances_per_s", None)
    first = [] if epoch is None else [f"epoch {epoch}" + (f"/{epochs}" if epochs else "")]
    return first + [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in list(shown.items())[:MOST_REPORTED]
    ]


def of_rank(record: RankRecord) -> Row:
    """One rank, its parts' fields prefixed: `cores_usable`, `cpu_user_s`, `memory_...`."""
    row = {name: getattr(record, name) for name in RANK}
    if record.error:
        row["error"] = f"{record.error.get('type')}: {record.error.get('message')}"
    for part in RANK_PARTS:
        values = getattr(record, part)
        row |= {f"{part}_{name}": getattr(values, name) for name in type(values).model_fields}
    if record.training:
        told = record.training
        row |= {name: getattr(told, name) for name in _scalars()}
        row |= {f"{phase}_s": getattr(told.phases, f"{phase}_s") for phase in PHASES_TRAINED}
        row |= {f"sync_{name}": getattr(told.sync, name, None) for name in SYNC}
    return row | {"warnings": record.warnings}


def of_epochs(ranks: Sequence[RankRecord]) -> Iterator[Row]:
    """The first rank's epochs, with the slowest rank's times: that is when the epoch was over."""
    trained = [record.training for record in ranks if record.training]
    for epochs in zip(*(told.epochs for told in trained), strict=False):
        row = {name: getattr(epochs[0], name) for name in Epoch.model_fields}
        slowest = {
            name: max(getattr(epoch, name) for epoch in epochs)
            for name in Epoch.model_fields
            if name.endswith("_s")
        }
        yield {"run_id": ranks[0].run_id, "attempt": ranks[0].attempt} | row | slowest


def of_cores(node: NodeRecord) -> Iterator[Row]:
    """One CPU's busy share, ours and others': mean over time, and its highest window."""
    for cpu, busy, ours in zip(node.cpus, node.busy, node.ours, strict=False):
        # No max(): of thousands of cores with hundreds of windows its call took half of `collect`.
        others = [b - own if b > own else 0.0 for b, own in zip(busy, ours, strict=False)]
        yield {
            "run_id": node.run_id,
            "attempt": node.attempt,
            "node": node.node,
            "node_index": node.node_index,
            "cpu": cpu,
            "elapsed_s": sum(node.length_s),
            **{
                f"{name}_{what}": value
                for name, shares in (("busy", busy), ("ours", ours), ("others", others))
                for what, value in (
                    ("mean", _mean(shares, node.length_s)),
                    ("peak", max(shares, default=None)),
                )
            },
        }


def _mean(shares: Sequence[float], lengths: Sequence[float]) -> float | None:
    """Weighted by the windows' lengths: they widen as a run grows."""
    return watched.ratio(sum(map(mul, shares, lengths)), sum(lengths))
