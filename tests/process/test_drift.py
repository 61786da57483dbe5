"""Engines that leave idle rows behind end where torch's Adam ends, which moves every row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from trained import POSITIVES, furthest, trained, typical

from hpcncf.data import synthetic
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.native.builds import installed_builds

STEPS = 500
NATIVE = pytest.mark.skipif(not installed_builds(), reason="engine native was not built here")
ENGINES = ["rowwise", pytest.param("native", marks=NATIVE)]


@pytest.fixture(scope="module")
def sparse_rows(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Data of which a step of eight positives has few rows, so that the others idle for long."""
    folder = tmp_path_factory.mktemp("data") / "wide"
    synthetic.prepare_synthetic(
        folder, users=300, items=2000, train_rows=POSITIVES * STEPS, context=5
    )
    return load_prepared(folder)


@pytest.fixture(scope="module")
def exact(sparse_rows: PreparedData) -> dict[str, Tensor]:
    """torch's Adam in float64."""
    return trained(sparse_rows, STEPS, torch.float64)


@pytest.mark.parametrize("engine", ENGINES)
def test_500_steps_in_float64_end_where_torchs_adam_ends(
    sparse_rows: PreparedData, exact: dict[str, Tensor], engine: str
) -> None:
    """One step moves a parameter by up to 0.001: 500 differ by less than a twentieth of one."""
    ours = trained(sparse_rows, STEPS, torch.float64, engine=engine)
    assert list(ours) == list(exact)
    assert furthest(ours, exact) < 5e-5
    assert typical(ours, exact) < 1e-6


@pytest.fixture(scope="module")
def single(sparse_rows: PreparedData) -> dict[str, Tensor]:
    """torch's Adam in float32."""
    return trained(sparse_rows, STEPS, torch.float32)


@pytest.mark.parametrize("engine", ENGINES)
def test_in_float32_an_engine_drifts_no_more_than_twice_as_far_as_torch_does(
    sparse_rows: PreparedData, exact: dict[str, Tensor], single: dict[str, Tensor], engine: str
) -> None:
    ours = trained(sparse_rows, STEPS, torch.float32, engine=engine)
    for distance in (furthest, typical):
        assert distance(ours, exact) <= 2 * distance(single, exact), distance.__name__
