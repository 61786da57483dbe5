"""The row-wise engine computes what the reference engine computes, and only faster."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from interrupted import attempts
from make_runs import planned, tiny, trainer
from trained import POSITIVES, furthest, trained

from hpcncf.job.spec import Model
from hpcncf.ncf.data import synthetic
from hpcncf.ncf.data.prepared import Prepared, load_prepared


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "small"
    tiny(folder)
    return folder


@pytest.fixture(scope="module")
def sparse_rows(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Data of which a step of eight positives has few rows, so that the others idle for long."""
    folder = tmp_path_factory.mktemp("data") / "wide"
    synthetic.prepare_synthetic(
        folder, users=300, items=2000, train_rows=POSITIVES * 250, context=5
    )
    return load_prepared(folder)


@pytest.mark.parametrize("optimizer", ["lazy_adam", "sgd"])
def test_rules_that_leave_idle_rows_alone_are_torchs_own(
    sparse_rows: Prepared, optimizer: str
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
    sparse_rows: Prepared, sizes: Model, negatives: int
) -> None:
    """Dropout too: both draw the same masks, because hidden values stand in the same order."""
    each = {"sizes": sizes, "negatives": negatives}
    ours = trained(sparse_rows, 40, torch.float64, engine="rowwise", **each)
    assert furthest(ours, trained(sparse_rows, 40, torch.float64, **each)) < 1e-5


@pytest.mark.parametrize(
    ("optimizer", "dropped"), [("adam", 0.0), ("adam", 0.3), ("lazy_adam", 0.0), ("sgd", 0.0)]
)
def test_a_run_interrupted_anywhere_has_the_bits_of_one_never_interrupted(
    small: Path, tmp_path: Path, optimizer: str, dropped: float
) -> None:
    """In the steps taken one by one, in mid-epoch, at an epoch's end."""
    run = planned(small, model=Model(dropout=dropped), engine="rowwise", optimizer=optimizer)
    whole = trainer(run, tmp_path / "whole")
    whole.train()
    cut = attempts(run, tmp_path / "cut", [4, 20, 30, 9])
    assert cut.record().model_sha256 == whole.record().model_sha256
    losses = [[epoch.loss for epoch in each.epochs] for each in (cut, whole)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("loader", ["per_sample", "batched", "device"])
def test_all_loaders_feed_it_alike(small: Path, tmp_path: Path, loader: str) -> None:
    digests = []
    for each in (loader, "vectorized"):
        rank = trainer(planned(small, engine="rowwise", loader=each, epochs=1), tmp_path / each)
        rank.train()
        digests.append(rank.record().model_sha256)
    assert digests[0] == digests[1]


def test_a_record_is_as_the_reference_engines_one(small: Path, tmp_path: Path) -> None:
    records = []
    for name in ("reference", "rowwise"):
        rank = trainer(planned(small, engine=name), tmp_path / name)
        rank.train()
        records.append(rank.record())
    theirs, ours = records
    assert (ours.parameters, ours.instances) == (theirs.parameters, theirs.instances)
    for epoch, expected in zip(ours.epochs, theirs.epochs, strict=True):
        assert epoch.loss == pytest.approx(expected.loss, rel=1e-4)
        assert epoch.mrr == pytest.approx(expected.mrr, rel=0.03)
    assert sum(ours.phases.model_dump().values()) == pytest.approx(ours.counted_s)
