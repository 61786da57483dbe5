"""Small data and runs for the tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcncf.data import synthetic
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.job.plan import Run
from hpcncf.job.spec import Data, Model, Resources, Training
from hpcncf.launcher.environment import Place
from hpcncf.paths import RunPaths


def tiny(folder: Path) -> PreparedData:
    """1,501 training rows: with a batch of 50, the last step has one row only."""
    synthetic.prepare_synthetic(folder, users=40, items=150, train_rows=1501, context=9)
    return load_prepared(folder)


def planned(folder: Path, ranks: int = 1, model: Model | None = None, **training: Any) -> Run:
    settings = {"threads": 1, "epochs": 2, "global_batch_size": 50} | training
    return Run(
        id="0123456789ab",
        repeat=0,
        varied={},
        workload="ncf",
        resources=Resources(tasks_per_node=ranks),
        data=Data(path=str(folder)),
        data_key=load_prepared(folder).manifest.key,
        model=model or Model(),
        training=Training(**settings),
    )


def trainer(run: Run, results: Path, place: Place | None = None) -> Any:
    from hpcncf.ncf.trainer import Trainer

    data = load_prepared(Path(run.data.path))
    return Trainer(run, data, place or Place(), RunPaths(results), lambda _: None)
