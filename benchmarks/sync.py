"""What ranks gain and cost on one node: one rank against two, for each way of synchronising.

Every step has 256 positives over all ranks. At full size windows of all ways take turns; a way's
speed is that of its slower rank. On the small set each way trains three epochs, and its HR@10
stands beside. Rows go over gloo where the ranks are told that they are on two nodes. Exposed
waiting and bytes are a rank's mean step's.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from benchmarks.training import frappe_or_made, full_size, trainer
from hpcncf.job.spec import Model, Training
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.ncf import model
from hpcncf.ncf.data.prepared import Prepared, load_prepared
from hpcncf.ncf.distributed import gather_objects, wait_for_ranks
from hpcncf.ncf.engines import base
from hpcncf.ncf.instances import Schedule
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync.local_sgd import steps_until_mean, syncs_after
from hpcncf.worker.environment import Place
from hpcncf.worker.recorder import at_once

ROUNDS: Final = 5
ROUNDS_OF_EPOCHS: Final = 3
EPOCHS: Final = 3
WARMUP_STEPS: Final = 16
ROWWISE: Final = {"engine": "rowwise"}
NATIVE: Final = {"engine": "native"}
ROWS: Final = {"sync": "rows"}


def apart(every: int) -> dict[str, Any]:
    return {"sync": "local_sgd", "sync_every": every}


@dataclass(frozen=True)
class Way:
    name: str
    settings: dict[str, Any]
    steps: int
    """Of a window: one or two seconds of them."""
    ranks: int = 2
    nodes: int = 1
    threads: int = 1

    @property
    def training(self) -> Training:
        return Training.model_validate(self.settings | {"threads": self.threads})

    def place(self, rank: int) -> Place:
        return Place(rank, rank, self.ranks, self.ranks // self.nodes)


# The first of each engine is what its others are compared with.
WAYS: Final = (
    (
        Way("dense Adam, one rank", {}, 16, ranks=1),
        Way("DDP", {}, 16),
        Way("apart, mean every 16", apart(16), 16),
    ),
    (
        Way("row-wise, one rank", ROWWISE, 256, ranks=1),
        Way("rows over gloo", ROWWISE | ROWS, 128, nodes=2),
        Way("rows over shared memory", ROWWISE | ROWS, 256),
        Way("apart, mean every 16", ROWWISE | apart(16), 256),
        Way("apart, mean every 128", ROWWISE | apart(128), 256),
    ),
    (
        Way("compiled, one rank", NATIVE, 2048, ranks=1),
        Way("one rank of two threads", NATIVE, 4096, ranks=1, threads=2),
        Way("rows over gloo", NATIVE | ROWS, 256, nodes=2),
        Way("rows over shared memory", NATIVE | ROWS, 2048),
        Way("apart, mean every 16", NATIVE | apart(16), 1024),
        Way("apart, mean every 128", NATIVE | apart(128), 2048),
    ),
)


@dataclass(frozen=True)
class Speed:
    """Of all ranks; the last two of a rank's mean step."""

    per_s: float
    sync_ms: float
    kib: float


def median(of: Sequence[Speed]) -> Speed:
    return Speed(*(statistics.median(vars(each)[name] for each in of) for name in vars(of[0])))


class Walker:
    """One rank's engine, a window of steps at a time."""

    def __init__(self, way: Way, data: Prepared, rank: int) -> None:
        self.way, self.place, self.training = way, way.place(rank), way.training
        bind(way, rank)
        batch = self.training.batch_over_ranks(way.ranks)
        self.schedule = Schedule(data.manifest.train_rows, batch, rank, way.ranks)
        self.clock = StepClock(0, self.schedule.steps)
        start = model.initial_model(data.manifest, Model(), self.training.seed)
        device = torch.device("cpu")
        ground = base.EngineInputs(data, Model(), self.schedule, way.threads)
        ground = base.with_transport(ground, start, self.training, self.place, device, self.clock)
        made = base.build_engine(start, self.training, way.ranks, device, self.clock, ground)
        loader, steps = Loader(data, self.training, self.schedule), range(self.schedule.steps - 1)
        epochs = (made.batches(loader, epoch, steps) for epoch in count())
        self.engine, self.batches = made, chain.from_iterable(epochs)
        self.window(WARMUP_STEPS)

    def window(self, steps: int) -> tuple[float, float, int]:
        """Seconds, those of them spent synchronising, and bytes sent."""
        apart = self.training.sync == "local_sgd"
        positives = self.schedule.batch // (self.way.ranks if apart else 1)
        sent, waited_s = self.clock.counted_bytes, self.clock.phases().sync_s
        self.clock.start()
        began = time.perf_counter()
        taken = 0
        while taken < steps:
            most = steps - taken
            if apart:
                most = min(most, steps_until_mean(self.training, taken))
            instances = positives * (1 + self.training.negatives)
            taken += len(self.engine.step(self.batches, instances, most)[1])
            if apart and syncs_after(self.training, self.way.ranks, taken - 1, steps):
                self.engine.average()
                self.clock.lap("sync")
            self.clock.end_step(0)
        seconds, phases = time.perf_counter() - began, self.clock.phases()
        return seconds, phases.sync_s - waited_s, self.clock.counted_bytes - sent

    def speed(self, steps: int) -> Speed:
        bind(self.way, self.place.rank)
        wait_for_ranks(self.place)
        told = gather_objects(self.window(steps), self.place)
        slowest, instances = max(each[0] for each in told), self.schedule.batch * steps
        waited_s, sent = (statistics.mean(each[part] for each in told) for part in (1, 2))
        each = 1 + self.training.negatives
        return Speed(instances * each / slowest, 1000 * waited_s / steps, sent / steps / 1024)


def bind(way: Way, rank: int) -> None:
    """Each of two ranks to a core of its own, as a launcher does."""
    cpus = usable()
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]} if way.ranks > 1 else cpus)


def usable() -> list[int]:
    return [int(cpu) for cpu in os.environ["BENCHMARK_CPUS"].split(",")]


def at_full_size(rank: int) -> list[Speed]:
    """Each way's median; of a rank alone what it saw."""
    data, ways = full_size(), list(chain(*WAYS))
    if rank == 0:
        print(f"Full size: {data.manifest.title}; medians of {ROUNDS} rounds.", flush=True)
    walkers = [Walker(way, data, rank) if rank < way.ranks else None for way in ways]
    found: list[list[Speed]] = [[] for _ in ways]
    for number in range(ROUNDS):
        turns = list(zip(ways, walkers, found, strict=True))
        for way, walker, speeds in turns if number % 2 == 0 else reversed(turns):
            dist.barrier()
            if walker:
                speeds.append(walker.speed(way.steps))
    return [median(each) if each else Speed(0, 0, 0) for each in found]


def on_small_data(rank: int, folder: Path) -> list[tuple[Speed, float]]:
    """The same, and HR@10 after some epochs."""
    data, ways = load_prepared(folder), list(chain(*WAYS))
    if rank == 0:
        print(f"Small: {data.manifest.title}, {EPOCHS} epochs; {ROUNDS_OF_EPOCHS} rounds.\n")
    found: list[list[tuple[Speed, float]]] = [[] for _ in ways]
    for _ in range(ROUNDS_OF_EPOCHS):
        for way, trained in zip(ways, found, strict=True):
            dist.barrier()
            if rank < way.ranks:
                bind(way, rank)
                trained.append(epochs(way, data, folder, rank))
    return [
        (median([speed for speed, _ in each]), each[0][1]) if each else (Speed(0, 0, 0), 0.0)
        for each in found
    ]


def epochs(way: Way, data: Prepared, folder: Path, rank: int) -> tuple[Speed, float]:
    place = way.place(rank)
    settings = way.settings | {"epochs": EPOCHS, "threads": way.threads}
    training = trainer(data, folder, settings, place=place)
    training.train()
    told = training.record()
    all_told = gather_objects(told, place)
    steps, slowest_s = told.counted_steps, max(each.counted_s for each in all_told)
    waited_s, sent = (
        statistics.mean(getattr(each.sync, name, 0) for each in all_told)
        for name in ("seconds", "bytes")
    )
    instances = sum(each.counted_instances for each in all_told)
    speed = Speed(instances / slowest_s, 1000 * waited_s / steps, sent / steps / 1024)
    return speed, told.epochs[-1].hr10 or 0.0


def be_rank(rank: int, folder: Path) -> int:
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    full, small = at_full_size(rank), on_small_data(rank, folder / "data")
    if rank == 0:
        show(full, small)
    dist.barrier()
    at_once(0)


def show(full: Sequence[Speed], small: Sequence[tuple[Speed, float]]) -> None:
    columns = "instances/s | | sync ms/step | KiB/step"
    print(f"| 256 positives | full size: {columns} | small: {columns} | HR@10 |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    rows = iter(zip(full, small, strict=True))
    for group in WAYS:
        first: tuple[Speed, Speed] | None = None
        for way in group:
            at_full, (at_small, hr10) = next(rows)
            first = first or (at_full, at_small)
            cells = [
                cell
                for each in zip((at_full, at_small), first, strict=True)
                for cell in told(*each)
            ]
            print(f"| {way.name} | {' | '.join(cells)} | {hr10:.4f} |")


def told(speed: Speed, first: Speed) -> list[str]:
    rate = [f"{speed.per_s:,.0f}", f"{speed.per_s / first.per_s:.2f}×"]
    return rate + ([f"{speed.sync_ms:.3g}", f"{speed.kib:,.0f}"] if speed.kib else ["–", "–"])


def main() -> int:
    """Print the table; two processes measure."""
    if len(usable_cpus()) < 2:
        print("Not measured: two ranks need two cores.")
        return 0
    full_size()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        frappe_or_made(folder / "data")
        known = {"BENCHMARK_CPUS": ",".join(map(str, usable_cpus())), "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "benchmarks.sync", temporary]
        ranks = [subprocess.Popen([*command, rank], env=os.environ | known) for rank in ("0", "1")]
        return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(be_rank(int(sys.argv[2]), Path(sys.argv[1])) if len(sys.argv) > 1 else main())
