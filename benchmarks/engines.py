"""The ladder from the naive loop to the compiled step: what each remedy gains, on one core.

Speed at full size is of windows of a few hundred steps at most: a naive epoch takes half an hour.
All rungs take turns in each round, so that the machine's drift is nobody's gain. Quality is that of
three epochs of Frappe, real where HPCNCF_DATA names the folder of its zip, else made.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from benchmarks import ladder
from benchmarks.ladder import Step
from benchmarks.training import frappe_or_made, full_size, trainer
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines.base import EngineInputs, build_engine
from hpcncf.ncf.instances import Schedule
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock
from hpcncf.records.schema import TrainingRecord

ROUNDS = 5
ROUNDS_OF_EPOCHS = 3
EPOCHS = 3
WARMUP_STEPS = 20


@dataclass(frozen=True)
class Rung:
    name: str
    settings: dict[str, Any]
    steps: int
    """Of a window: one or two seconds of them."""

    @property
    def training(self) -> Training:
        settings = {"threads": 1, "checkpoint_every": 0} | self.settings
        return Training.model_validate(settings)


LADDER = (
    Rung("naive: one sample at a time, torch's Adam", {"loader": "per_sample"}, 20),
    Rung("vectorized loader", {}, 20),
    Rung("and foreach Adam", {"adam": "foreach"}, 20),
    Rung("or fused Adam", {"adam": "fused"}, 60),
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
        start = model.initial_model(data.manifest, Model(), training.seed)
        assert training.threads != "auto"
        ground = EngineInputs(data, Model(), self.schedule, training.threads)
        self.engine = build_engine(start, training, 1, torch.device("cpu"), self.clock, ground)
        loader = Loader(data, training, self.schedule)
        steps = range(self.schedule.steps - 1)  # whole batches
        epochs = (self.engine.batches(loader, epoch, steps) for epoch in count())
        self.batches = chain.from_iterable(epochs)
        self.window(WARMUP_STEPS)

    def window(self, steps: int) -> float:
        """Instances per second of the next steps."""
        instances, left = self.schedule.batch * self.each, steps
        self.clock.start()
        began = time.perf_counter()
        while left:
            left -= len(self.engine.step(self.batches, instances, left)[1])
        return steps * instances / (time.perf_counter() - began)


def speeds(data: Prepared) -> list[float]:
    """Each rung's median."""
    climbers = [Climber(rung, data) for rung in LADDER]
    found: list[list[float]] = [[] for _ in climbers]
    for number in range(ROUNDS):
        order = list(enumerate(climbers))
        for at, climber in order if number % 2 == 0 else reversed(order):
            found[at].append(climber.window(climber.rung.steps))
    return [statistics.median(each) for each in found]


def trained(rung: Rung, data: Prepared, folder: Path) -> TrainingRecord:
    training = trainer(data, folder, rung.settings | {"epochs": EPOCHS})
    training.train()
    return training.record()


def quality() -> list[tuple[float, float]]:
    """Each rung's instances per second on Frappe, the median, and its HR@10 after three epochs."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "frappe"
        data = frappe_or_made(folder)
        print(f"Quality: {data.manifest.title}, {EPOCHS} epochs.\n", flush=True)
        rounds = range(ROUNDS_OF_EPOCHS)
        records = [[trained(rung, data, folder) for rung in LADDER] for _ in rounds]
    return [
        (
            statistics.median(told.counted_instances / told.counted_s for told in of_rung),
            of_rung[0].epochs[-1].hr10 or 0.0,
        )
        for of_rung in zip(*records, strict=True)
    ]


def climbed() -> list[Step]:
    data = full_size()
    print(f"Speed: {data.manifest.title}, batch 256; medians of {ROUNDS} rounds.", flush=True)
    fast, good = speeds(data), quality()
    return [
        Step(rung.name, per_s, *of_frappe)
        for rung, per_s, of_frappe in zip(LADDER, fast, good, strict=True)
    ]


def main() -> int:
    """Print the ladder, and draw it where `--figure` says."""
    asking = argparse.ArgumentParser()
    asking.add_argument("--figure", type=Path, help="a PNG to write")
    figure = asking.parse_args().figure
    torch.set_num_threads(1)
    steps = climbed()
    first = steps[0]
    print("| 256 positives | instances/s | | Frappe | | HR@10 |")
    print("|---|---:|---:|---:|---:|---:|")
    for step in steps:
        print(
            f"| {step.name} | {step.per_s:,.0f} | {step.per_s / first.per_s:.1f}× | "
            f"{step.small_per_s:,.0f} | {step.small_per_s / first.small_per_s:.1f}× | "
            f"{step.hr10:.4f} |"
        )
    if figure:
        figure.write_bytes(ladder.png(steps))
        print(f"\n![The ladder: instances per second and HR@10](images/{figure.name})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
