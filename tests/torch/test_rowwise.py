"""Engine rowwise: torch's rules on the rows of a step."""

from __future__ import annotations

import pytest
import torch
from trained import POSITIVES, furthest, trained

from hpcncf.data import synthetic
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.job.spec import Model


@pytest.fixture(scope="module")
def sparse_rows(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Data of which a step of eight positives has few rows, so that the others idle for long."""
    folder = tmp_path_factory.mktemp("data") / "wide"
    shape = {"users": 300, "items": 2000, "train_rows": POSITIVES * 250, "context": 5}
    synthetic.prepare_synthetic(folder, **shape)
    return load_prepared(folder)


@pytest.mark.parametrize("optimizer", ["lazy_adam", "sgd"])
def test_rules_that_leave_idle_rows_alone_are_torchs_own(
    sparse_rows: PreparedData, optimizer: str
) -> None:
    settings = {"optimizer": optimizer, "lr": 0.01}
    ours = trained(sparse_rows, 100, torch.float64, engine="rowwise", **settings)
    theirs = trained(sparse_rows, 100, torch.float64, sparse=True, **settings)
    assert furthest(ours, theirs) < 1e-12


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
