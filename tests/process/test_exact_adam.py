"""Engines that leave idle rows behind end where torch's optimizers end, which move every row."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from trained import POSITIVES, furthest, trained, typical

from hpcncf.data import synthetic
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.job.spec import Model
from hpcncf.native.builds import cpu_flags, installed_builds, select_build
from hpcncf.ncf.engines import native

STEPS = 500
BUILDS = [
    name
    for name, file in installed_builds().items()
    if select_build({name: file}, cpu_flags()) is not None
]
ENGINES = ["rowwise", *(f"native {build}" for build in BUILDS)]
each_engine = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(scope="module")
def sparse_rows(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Data of which a step of eight positives has few rows, so that the others idle for long."""
    folder = tmp_path_factory.mktemp("data") / "wide"
    synthetic.prepare_synthetic(
        folder, users=300, items=2000, train_rows=POSITIVES * STEPS, context=5
    )
    return load_prepared(folder)


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, engine: str) -> Any:
    """Function that trains by the engine; native by the build that the name has."""
    name, _, build = engine.partition(" ")
    if build:
        monkeypatch.setattr(native, "NativeEngine", partial(native.NativeEngine, build=build))
    return partial(trained, engine=name)


@pytest.fixture(scope="module")
def exact(sparse_rows: PreparedData) -> dict[str, Tensor]:
    """torch's Adam in float64."""
    return trained(sparse_rows, STEPS, torch.float64)


@pytest.fixture(scope="module")
def single(sparse_rows: PreparedData) -> dict[str, Tensor]:
    """torch's Adam in float32."""
    return trained(sparse_rows, STEPS, torch.float32)


@each_engine
def test_500_steps_in_float64_end_where_torchs_adam_ends(
    sparse_rows: PreparedData, exact: dict[str, Tensor], ours: Any
) -> None:
    """One step moves a parameter by up to 0.001: 500 differ by less than a twentieth of one."""
    found = ours(sparse_rows, STEPS, torch.float64)
    assert list(found) == list(exact)
    assert furthest(found, exact) < 5e-5
    assert typical(found, exact) < 1e-6


@each_engine
def test_in_float32_an_engine_drifts_no_more_than_twice_as_far_as_torch_does(
    sparse_rows: PreparedData, exact: dict[str, Tensor], single: dict[str, Tensor], ours: Any
) -> None:
    found = ours(sparse_rows, STEPS, torch.float32)
    for distance in (furthest, typical):
        assert distance(found, exact) <= 2 * distance(single, exact), distance.__name__


@each_engine
@pytest.mark.parametrize("optimizer", ["lazy_adam", "sgd"])
def test_rules_that_leave_idle_rows_alone_are_torchs_own(
    sparse_rows: PreparedData, optimizer: str, ours: Any
) -> None:
    settings = {"optimizer": optimizer, "lr": 0.01}
    theirs = trained(sparse_rows, 100, torch.float64, sparse=True, **settings)
    assert furthest(ours(sparse_rows, 100, torch.float64, **settings), theirs) < 1e-10


@pytest.mark.parametrize(
    ("sizes", "negatives"),
    [
        (Model(layers=(5,), gmf_width=3, mlp_width=7), 1),
        (Model(layers=(24, 12, 6, 3), gmf_width=1, mlp_width=2), 6),
        (Model(dropout=0.4), 4),
    ],
)
def test_any_widths_any_negatives_and_dropout_give_the_same_model(
    sparse_rows: PreparedData, sizes: Model, negatives: int
) -> None:
    """Dropout too: both draw the same masks, because hidden values stand in the same order."""
    each = {"sizes": sizes, "negatives": negatives}
    ours = trained(sparse_rows, 40, torch.float64, engine="rowwise", **each)
    assert furthest(ours, trained(sparse_rows, 40, torch.float64, **each)) < 1e-5
