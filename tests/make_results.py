"""Builds a results folder as a finished job leaves it, through the records' own models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hpcncf.data.manifest import Manifest
from hpcncf.files import write_text
from hpcncf.job.expand import expand_job
from hpcncf.job.plan import Plan, Run, TypedCommand
from hpcncf.job.spec import JobSpec, Program, Resources
from hpcncf.paths import ResultPaths
from hpcncf.records.schema import (
    Batches,
    Claim,
    Cores,
    Cpu,
    Epoch,
    Io,
    Memory,
    NodeRecord,
    Phases,
    RankRecord,
    Sync,
    TrainingRecord,
    write_record,
)

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
TRAIN_ROWS = 83_731
POINTS: list[dict[str, Any]] = [
    {
        "resources.cpus_per_task": cpus,
        "resources.tasks_per_node": ranks,
        "training.loader": loader,
    }
    for loader in ("per_sample", "vectorized")
    for cpus, ranks in ((1, 1), (2, 1), (1, 2))
]
# Instances per second and CPU efficiency, as a two-core machine would show them.
SPEED = {
    ("per_sample", 1, 1): (21_000, 0.98),
    ("per_sample", 2, 1): (22_000, 0.51),
    ("per_sample", 1, 2): (39_000, 0.96),
    ("vectorized", 1, 1): (96_000, 0.97),
    ("vectorized", 2, 1): (108_000, 0.78),
    ("vectorized", 1, 2): (171_000, 0.94),
}
SHARES = {
    "per_sample": (0.71, 0.09, 0.11, 0.0, 0.07, 0.02),
    "vectorized": (0.08, 0.29, 0.34, 0.0, 0.25, 0.04),
}


def demo(folder: Path, repeats: int = 3, **settings: Any) -> ResultPaths:
    """The demo's plan, its job file's settings overridden by `settings`, nothing run yet."""
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "manifest.json").write_text(manifest().model_dump_json())
    job = JobSpec.model_validate(
        {"name": "demo", "data": {"path": str(data)}, "points": POINTS, "repeats": repeats}
        | settings
    )
    return planned(folder / "results", expand_job(job, {str(data): "key"}))


def planned(folder: Path, plan: Plan) -> ResultPaths:
    paths = ResultPaths(folder)
    write_text(paths.plan, plan.model_dump_json())
    return paths


def command_plan(folder: Path, command: Sequence[str] = ("python", "train.py")) -> ResultPaths:
    """What `hpcncf run` leaves before its command ends."""
    workload = Program(command=list(command), folder=str(folder))
    resources = Resources(cpus_per_task=5)
    run = TypedCommand(
        id="0123456789ab",
        repeat=0,
        varied={},
        workload=workload,
        resources=resources,
        data=None,
        data_key=None,
        model=None,
        training=None,
    )
    return planned(folder / "results", Plan(job="run", runs=[run]))


def manifest(**changes: Any) -> Manifest:
    plain = {
        "key": "key",
        "dataset": "frappe",
        "title": "Frappe: 84,385 rows, 654 users, 1,127 items",
        "source": {},
        "options": {},
        "users": 654,
        "items": 1127,
        "rows": 84_385,
        "train_rows": TRAIN_ROWS,
        "train_pairs": 13_800,
        "test_rows": 654,
        "context_columns": ["c"] * 21,
        "small_columns": 20,
        "buckets": 654,
        "test_negatives": 99,
    }
    return Manifest.model_validate(plain | changes)


def of_format_3(folder: Path) -> None:
    """Its manifest becomes one that hpcncf left before format 4."""
    path = folder / "manifest.json"
    plain = json.loads(path.read_text()) | {"format_version": 3}
    del plain["small_columns"], plain["buckets"]
    path.write_text(json.dumps(plain))


def plan_of(paths: ResultPaths) -> Plan:
    return Plan.model_validate_json(paths.plan.read_text())


def complete(paths: ResultPaths, only: Sequence[Run] | None = None, windows: int = 60) -> None:
    """Let every run (or those given) leave what a completed run leaves."""
    for run in plan_of(paths).runs if only is None else only:
        leave(paths, run, windows)


def leave(paths: ResultPaths, run: Run, windows: int = 60, **changes: Any) -> None:
    """One completed run's files; `changes` go to every rank's record."""
    attempt = paths.run(run.id).attempt(1)
    write_record(attempt.claim, claim(run))
    for rank in range(run.resources.world_size):
        write_record(attempt.rank(rank), rank_record(run, rank).model_copy(update=changes))
    write_record(attempt.node(0), node_record(run, windows))


def claim(run: Run) -> Claim:
    return Claim(
        run_id=run.id,
        attempt=1,
        node="node1",
        pid=1,
        process_started=0.0,
        claimed_at=START.isoformat(),
        launched_by="local",
        slurm_job_id=None,
    )


def speed(run: Run) -> tuple[float, float]:
    """Instances/s of all ranks, and CPU efficiency; repeats differ by 2 %."""
    if run.training is None:
        return 1.0, 0.2
    resources = run.resources
    known = SPEED.get((run.training.loader, resources.cpus_per_task, resources.tasks_per_node))
    rate, efficiency = known or (50_000.0 * resources.cores**0.7, 0.9)
    return rate * (1 + 0.02 * (run.repeat - 1)), efficiency


def elapsed_s(run: Run) -> float:
    rate, _ = speed(run)
    if run.training is None:
        return 100.0
    return 4.0 + run.training.epochs * (5 * TRAIN_ROWS / rate + 0.5)


def rank_record(run: Run, rank: int) -> RankRecord:
    """One rank of a completed run."""
    elapsed, (_, efficiency) = elapsed_s(run), speed(run)
    allocated = run.resources.cpus_per_task
    cpu_s = efficiency * elapsed * allocated
    return RankRecord(
        run_id=run.id,
        attempt=1,
        rank=rank,
        local_rank=rank,
        world_size=run.resources.world_size,
        node="node1",
        node_index=0,
        pid=100 + rank,
        launched_by="local",
        slurm_job_id=None,
        outcome="completed",
        exit_code=0,
        error=None,
        started_at=START.isoformat(timespec="milliseconds"),
        ended_at=(START + timedelta(seconds=elapsed)).isoformat(timespec="milliseconds"),
        elapsed_s=elapsed,
        run=json.loads(run.model_dump_json()),
        environment={"cpu_model": "Example CPU 2.0 GHz", "commit": "abc1234"},
        cores=Cores(
            allocated=allocated,
            usable=allocated,
            used=cpu_s / elapsed,
            cpus=[rank * allocated + cpu for cpu in range(allocated)],
            affinity_changed=False,
            quota=None,
            threads_per_core=1,
            on_node=8,
        ),
        cpu=Cpu(
            user_s=cpu_s * 0.9,
            system_s=cpu_s * 0.1,
            efficiency=efficiency,
            efficiency_peak=min(efficiency * 1.02, 1.0),
            peak_window_s=10.0,
            context_switches_voluntary=100,
            context_switches_involuntary=10,
            threads_peak=3,
            processes_peak=1,
        ),
        memory=Memory(rss_peak_mib=400.0, anonymous_peak_mib=250.0, limit_mib=None),
        io=Io(read_mib=1.0, write_mib=2.0),
        training=training_record(run) if run.training else None,
        warnings=[],
    )


def training_record(run: Run) -> TrainingRecord:
    rate, _ = speed(run)
    world = run.resources.world_size
    instances = 5 * TRAIN_ROWS
    epoch_s = instances / rate
    counted = instances * run.training.epochs // world
    counted_s = counted * world / rate
    ranked = SHARES.get(run.training.loader, SHARES["vectorized"])
    shares = [part * (0.9 if world > 1 else 1.0) for part in ranked]
    shares[3] = 1 - sum(shares) if world > 1 else 0.0
    names = ("input_s", "forward_s", "backward_s", "sync_s", "optimizer_s", "other_s")
    steps = 328 * run.training.epochs
    return TrainingRecord(
        device="cpu",
        backend="gloo",
        threads=run.resources.cpus_per_task,
        parameters=74_673,
        startup_s=4.0,
        training_s=epoch_s * run.training.epochs,
        evaluation_s=0.4 * run.training.epochs,
        checkpoint_s=0.1 * run.training.epochs,
        steps=328 * run.training.epochs,
        instances=counted,
        warmup_steps=20,
        counted_steps=328 * run.training.epochs,
        counted_instances=counted,
        counted_s=counted_s,
        phases=Phases(
            **{name: share * counted_s for name, share in zip(names, shares, strict=True)}
        ),
        sync=synchronised(run, shares[3] * counted_s) if world > 1 else None,
        epochs=[epoch(number, epoch_s, run) for number in range(run.training.epochs)],
        batches=Batches(every=100, seconds=[100 * counted_s / steps] * (steps // 100), pauses=[]),
        model_sha256="ab" * 32,
        resumed_epoch=None,
        baseline={"hr10": 0.901, "ndcg10": 0.842},
        unseen_test_rows=150,
    )


def synchronised(run: Run, seconds: float) -> Sync:
    """All gradients of the model in each step, in one bucket."""
    steps = 328 * run.training.epochs
    sent = 4 * 74_673 * steps
    return Sync(how="dense", over="gloo", every=1, exchanges=steps, bytes=sent, seconds=seconds)


def epoch(number: int, training_s: float, run: Run) -> Epoch:
    return Epoch(
        epoch=number,
        training_s=training_s,
        evaluation_s=0.4,
        checkpoint_s=0.1,
        first_batch_s=0.01,
        steps=328,
        instances=5 * TRAIN_ROWS,
        loss=0.4 / (number + 1),
        evaluation_pairs=65_400,
        hr10=0.70 + 0.05 * number + 0.002 * run.repeat,
        ndcg10=0.50 + 0.05 * number,
        mrr=0.45 + 0.05 * number,
        hr10_unseen=0.40 + 0.02 * number,
    )


def node_record(run: Run, windows: int = 60) -> NodeRecord:
    """Cores that alternate a little around the run's efficiency, and a neighbour on CPU 1."""
    elapsed, (_, efficiency) = elapsed_s(run), speed(run)
    cpus = list(range(run.resources.cores))
    length = elapsed / windows
    ours = [
        [
            round(_share(efficiency, i, len(cpus)) * (0.3 if w < 4 else 1.0), 3)
            for w in range(windows)
        ]
        for i in cpus
    ]
    others = [[0.5 if i == 1 and 20 <= w < 26 else 0.01 for w in range(windows)] for i in cpus]
    busy = [
        [round(min(1.0, a + b), 3) for a, b in zip(mine, other, strict=True)]
        for mine, other in zip(ours, others, strict=True)
    ]
    flat = [0.0] * windows
    return NodeRecord(
        run_id=run.id,
        attempt=1,
        node="node1",
        node_index=0,
        started_at=START.isoformat(),
        start_s=[round(w * length, 3) for w in range(windows)],
        length_s=[length] * windows,
        cpus=cpus,
        busy=busy,
        ours=ours,
        steal=flat,
        others_cores=flat,
        tree_cpu_s=[round(length * sum(mine[w] for mine in ours), 3) for w in range(windows)],
        rss_mib=[400.0] * windows,
        memory_used_mib=[4000.0] * windows,
        network_mib=flat,
        loopback_mib=flat,
        disk_mib=flat,
    )


def _share(efficiency: float, cpu: int, cpus: int) -> float:
    uneven = 1.0 if cpus == 1 else 2.0 - 2 * (cpu % 2) * 0.97
    return min(1.0, max(0.0, efficiency * uneven))
