"""The ladder from the naive loop to the compiled step: what each remedy gains, on one core.

Speed at full size is of windows of a few hundred steps at most: a naive epoch takes half an hour.
All rungs take turns in each round, so that the machine's drift is nobody's gain. Quality is that of
three epochs of Frappe, real where HPCNCF_DATA names the folder of its zip, else made.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from hpcncf.ncf import engine, model
from hpcncf.ncf.data import frappe, prepared, synthetic
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.loaders import Loader, Schedule
from hpcncf.ncf.phases import StepClock
from hpcncf.ncf.train import Trainer
from hpcncf.paths import RunPaths
from hpcncf.plan import Run
from hpcncf.rank.launcher import Place
from hpcncf.records import TrainingRecord
from hpcncf.spec import Data, Model, Resources, Training

ROUNDS = 5
EPOCHS = 3
WARMUP_STEPS = 20
FULL_SIZE = Path(__file__).parent.parent / "data/yelp"


@dataclass(frozen=True)
class Rung:
    name: str
    settings: dict[str, Any]
    steps: int
    """Of a window: one or two seconds of them."""

    @property
    def training(self) -> Training:
        settings = {"epochs": EPOCHS, "threads": 1, "checkpoint_every": 0} | self.settings
        return Training.model_validate(settings)


LADDER = (
    Rung("naive: one sample at a time, torch's Adam", {"loader": "per_sample"}, 20),
    Rung("vectorized loader", {}, 20),
    Rung("and fused Adam", {"adam": "fused"}, 60),
    Rung("or sparse gradients, SparseAdam", {"sparse": True, "optimizer": "lazy_adam"}, 300),
    Rung("row-wise, exact Adam", {"engine": "rowwise"}, 400),
    Rung("row-wise, lazy Adam", {"engine": "rowwise", "optimizer": "lazy_adam"}, 400),
    Rung("compiled, exact Adam", {"engine": "native"}, 2000),
    Rung("compiled, lazy Adam", {"engine": "native", "optimizer": "lazy_adam"}, 2000),
    Rung("compiled, exact Adam, two threads", {"engine": "native", "threads": 2}, 4000),
)


class Climber:
    """Trains as one rung says, a window of steps at a time."""

    def __init__(self, rung: Rung, data: Prepared) -> None:
        self.rung, training = rung, rung.training
        self.each = 1 + training.negatives
        self.schedule = Schedule(data.manifest.train_rows, training.batch_over_ranks(1))
        self.clock = StepClock(self.schedule.steps, self.schedule.steps)
        start = model.initial(data.manifest, Model(), training.seed)
        assert training.threads != "auto"
        ground = engine.Ground(data, Model(), self.schedule, training.threads)
        self.engine = engine.made(start, training, 1, torch.device("cpu"), self.clock, ground)
        loader = Loader(data, training, self.schedule)
        steps = range(self.schedule.steps - 1)  # whole batches
        epochs = (self.engine.batches(loader, epoch, steps) for epoch in count())
        self.batches = chain.from_iterable(epochs)
        self.window(WARMUP_STEPS)

    def window(self, steps: int) -> float:
        """Instances per second of the next steps."""
        instances = self.schedule.batch * self.each
        self.clock.start()
        began = time.perf_counter()
        for _ in range(steps):
            self.engine.step(self.batches, instances)
        return steps * instances / (time.perf_counter() - began)


def speeds(data: Prepared, rounds: int) -> list[float]:
    """Each rung's median."""
    climbers = [Climber(rung, data) for rung in LADDER]
    found: list[list[float]] = [[] for _ in climbers]
    for number in range(rounds):
        order = list(enumerate(climbers))
        for at, climber in order if number % 2 == 0 else reversed(order):
            found[at].append(climber.window(climber.rung.steps))
    return [statistics.median(each) for each in found]


def trained(rung: Rung, data: Prepared, folder: Path) -> TrainingRecord:
    run = Run(
        id="ladder",
        repeat=0,
        varied={},
        workload="ncf",
        resources=Resources(cpus_per_task=2),
        data=Data(path=str(folder)),
        data_key=data.manifest.key,
        model=Model(),
        training=rung.training,
    )
    trainer = Trainer(run, data, Place(), RunPaths(folder / run.id), lambda _: None)
    trainer.train()
    return trainer.record()


def quality(rounds: int) -> list[tuple[float, float]]:
    """Each rung's instances per second on Frappe, the median, and its HR@10 after three epochs."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, source = Path(temporary) / "frappe", os.environ.get("HPCNCF_DATA")
        if source:
            frappe.prepare(folder, Path(source))
        else:
            synthetic.prepare_like(folder, "frappe")
        data = prepared.load(folder)
        print(f"Quality: {data.manifest.title}.\n", flush=True)
        records = [[trained(rung, data, folder) for rung in LADDER] for _ in range(rounds)]
    return [
        (
            statistics.median(told.counted_instances / told.counted_s for told in of_rung),
            of_rung[0].epochs[-1].hr10 or 0.0,
        )
        for of_rung in zip(*records, strict=True)
    ]


def main(rounds: int = ROUNDS) -> int:
    """Print the ladder."""
    torch.set_num_threads(1)
    if not FULL_SIZE.exists():
        synthetic.prepare_like(FULL_SIZE, "yelp")
    data = prepared.load(FULL_SIZE)
    print(f"Speed: {data.manifest.title}; medians of {rounds} rounds.")
    fast, good = speeds(data, rounds), quality(rounds)
    print(f"| 256 positives | instances/s | | Frappe | | HR@10, {EPOCHS} epochs |")
    print("|---|---:|---:|---:|---:|---:|")
    for rung, per_s, (small_per_s, hr10) in zip(LADDER, fast, good, strict=True):
        print(
            f"| {rung.name} | {per_s:,.0f} | {per_s / fast[0]:.1f}× "
            f"| {small_per_s:,.0f} | {small_per_s / good[0][0]:.1f}× | {hr10:.4f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
