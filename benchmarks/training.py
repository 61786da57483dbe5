"""Data and runs that several benchmarks train: a run as a rank has it, in this process or in a pool
of them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from hpcncf.job.plan import Run
from hpcncf.job.spec import Data, Model, Resources, Training
from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.ncf.data import synthetic
from hpcncf.ncf.data.frappe import prepare_frappe
from hpcncf.ncf.data.prepared import Prepared, load_prepared
from hpcncf.ncf.trainer import Trainer
from hpcncf.paths import RunPaths
from hpcncf.records.schema import Epoch
from hpcncf.worker.environment import Place

Result = TypeVar("Result")

FULL_SIZE: Final = Path(__file__).parent.parent / "data/yelp"
SEEDS: Final = (0, 1, 2, 3, 4)
LAZY: Final = {"optimizer": "lazy_adam"}
ENGINES: Final[dict[str, dict[str, Any]]] = {
    "reference, adam": {},
    "rowwise, adam": {"engine": "rowwise"},
    "native, adam": {"engine": "native"},
    "reference, lazy_adam": LAZY | {"sparse": True},
    "rowwise, lazy_adam": LAZY | {"engine": "rowwise"},
    "native, lazy_adam": LAZY | {"engine": "native"},
}


def real_frappe(folder: Path) -> Prepared | None:
    """Frappe of the folder that the environment variable HPCNCF_DATA names; None: it names none."""
    source = os.environ.get("HPCNCF_DATA")
    if not source:
        return None
    prepare_frappe(folder, Path(source))
    return load_prepared(folder)


def frappe_or_made(folder: Path) -> Prepared:
    """Frappe where there is one, else made data of its shape."""
    data = real_frappe(folder)
    if data is None:
        synthetic.prepare_synthetic_like(folder, "frappe")
        data = load_prepared(folder)
    return data


def full_size() -> Prepared:
    """Made data of the Yelp extract's shape, which is kept: making it takes a while."""
    synthetic.prepare_synthetic_like(
        FULL_SIZE, "yelp", force=True
    )  # what is the same already stays
    return load_prepared(FULL_SIZE)


def made_movielens(folder: Path) -> Prepared:
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
    data: Prepared,
    folder: Path,
    training: dict[str, Any],
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    place: Place | None = None,
    init: Literal["torch", "paper"] = "torch",
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
        model=Model(init=init),
        training=Training.model_validate(settings),
    )
    return Trainer(run, data, place, RunPaths(folder / run.id), lambda _: None, on_epoch)
