"""Data and runs that several benchmarks train: a run as a rank has it, in this process or in a pool
of them, and an engine's steps without the trainer around them."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from hpcncf.data import synthetic
from hpcncf.data.datasets import prepare_frappe, prepare_ncf_files
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.job.plan import Run
from hpcncf.job.spec import Data, Model, Resources, Training
from hpcncf.launcher.environment import Place
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.engines.base import EngineInputs, build_engine, with_transport
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.model import initial_model
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.trainer import Trainer
from hpcncf.paths import RunPaths
from hpcncf.records.schema import Epoch, TrainingRecord

Result = TypeVar("Result")

FULL_SIZE: Final = Path(__file__).parent.parent / "data/yelp"
SEEDS: Final = (0, 1, 2, 3, 4)
WARMUP_STEPS: Final = 20
FORUM_MODEL: Final = Model(init="torch")
ENGINES: Final[dict[str, dict[str, Any]]] = {
    "reference": {},
    "rowwise": {"engine": "rowwise"},
    "native": {"engine": "native"},
    "native, lazy_adam": {"engine": "native", "optimizer": "lazy_adam"},
}


def real_frappe(folder: Path) -> PreparedData | None:
    """Frappe of the folder that the environment variable HPCNCF_DATA names; None: it names none."""
    source = os.environ.get("HPCNCF_DATA")
    if not source:
        return None
    prepare_frappe(folder, Path(source))
    return load_prepared(folder)


def real_movielens(folder: Path) -> PreparedData | None:
    """MovieLens-1M in the files of the NCF paper's code, which are in the folder that HPCNCF_DATA
    names; None: they are not."""
    source = Path(os.environ.get("HPCNCF_DATA", ""), "ml-1m.train.rating")
    if not os.environ.get("HPCNCF_DATA") or not source.exists():
        return None
    prepare_ncf_files(folder, source.parent)
    return load_prepared(folder)


def frappe_or_made(folder: Path) -> PreparedData:
    """Frappe where there is one, else made data of its shape."""
    data = real_frappe(folder)
    if data is None:
        synthetic.prepare_synthetic_like(folder, "frappe")
        data = load_prepared(folder)
    return data


def full_size() -> PreparedData:
    """Made data of the Yelp extract's shape, which is kept: making it takes a while."""
    synthetic.prepare_synthetic_like(
        FULL_SIZE, "yelp", force=True
    )  # what is the same already stays
    return load_prepared(FULL_SIZE)


def made_movielens(folder: Path) -> PreparedData:
    """Made data of MovieLens 100K's shape, one of each user's rows held out. Almost all test pairs
    are new: a task that a table of counts cannot do."""
    synthetic.prepare_synthetic(folder, users=943, items=1_682, train_rows=99_057)
    return load_prepared(folder)


def in_processes(call: Callable[..., Result], jobs: Iterable[tuple[Any, ...]]) -> list[Result]:
    """What `call` returns of each job, in their order; as many at once as there are cores."""
    fresh = multiprocessing.get_context("spawn")  # a fork would copy torch's threads half
    with ProcessPoolExecutor(len(usable_cpus()), mp_context=fresh) as pool:
        asked = [pool.submit(call, *job) for job in jobs]
        return [each.result() for each in asked]


def trainer(
    data: PreparedData,
    folder: Path,
    training: dict[str, Any],
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    place: Place | None = None,
    model: Model = FORUM_MODEL,
) -> Trainer:
    """Of a rank of a run that leaves nothing behind; on one thread, unless `training` says
    otherwise."""
    place = place or Place()
    settings = {"threads": 1, "checkpoint_every": 0} | training
    run = Run(
        id="benchmark",
        repeat=0,
        varied={},
        workload="ncf",
        resources=Resources(tasks_per_node=place.world_size, cpus_per_task=settings["threads"]),
        data=Data(path=str(folder)),
        data_key=data.manifest.key,
        model=model,
        training=Training.model_validate(settings),
    )
    return Trainer(run, data, place, RunPaths(folder / run.id), lambda _: None, on_epoch)


def trained(
    data: PreparedData,
    folder: Path,
    training: dict[str, Any],
    place: Place | None = None,
    model: Model = FORUM_MODEL,
) -> TrainingRecord:
    """What a rank that trained to its end leaves."""
    rank = trainer(data, folder, training, place=place, model=model)
    rank.train()
    return rank.record()


def per_s(record: TrainingRecord) -> float:
    return record.counted_instances / record.counted_s


class Stepper:
    """One rank's engine, a window of steps at a time; its data goes round without an end."""

    def __init__(
        self,
        data: PreparedData,
        settings: dict[str, Any],
        place: Place | None = None,
        warmup_steps: int = WARMUP_STEPS,
    ):
        self.place = place or Place()
        self.training = Training.model_validate({"threads": 1, "checkpoint_every": 0} | settings)
        ranks = self.place.world_size
        batch = self.training.batch_over_ranks(ranks)
        self.schedule = Schedule(data.manifest.train_rows, batch, self.place.rank, ranks)
        self.clock = StepClock(0, self.schedule.steps)
        start = initial_model(data.manifest, Model(), self.training.seed)
        assert self.training.threads != "auto"
        inputs = EngineInputs(data, Model(), self.schedule, self.training.threads)
        device = torch.device("cpu")
        if ranks > 1:
            inputs = with_transport(inputs, start, self.training, self.place, self.clock)
        self.engine = build_engine(start, self.training, ranks, device, self.clock, inputs)
        loader, whole = (
            RankLoader(data, self.training, self.schedule),
            range(self.schedule.steps - 1),
        )
        epochs = (self.engine.batches(loader, epoch, whole) for epoch in count())
        self.batches = chain.from_iterable(epochs)
        self.window(warmup_steps)

    def window(self, steps: int) -> float:
        """Take so many steps. Returns seconds."""
        instances = self.schedule.batch * (1 + self.training.negatives)
        taken = 0
        self.clock.start()
        began = time.perf_counter()
        while taken < steps:
            taken += len(self.engine.step(self.batches, instances, steps - taken)[1])
            self.clock.end_step(0)
        return time.perf_counter() - began

    def instances(self, steps: int) -> int:
        """Of all ranks."""
        return self.schedule.batch * (1 + self.training.negatives) * steps


def in_turn(number: int, cases: Sequence[Result]) -> Iterable[tuple[int, Result]]:
    """With their places: every other round backwards, so that the machine's drift is nobody's
    gain."""
    order = list(enumerate(cases))
    return order if number % 2 == 0 else reversed(order)
