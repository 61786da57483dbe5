"""On the real data the model reaches what a correct implementation does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from make_runs import planned, trainer

from hpcncf.ncf.data.frappe import prepare_frappe


@pytest.mark.slow
@pytest.mark.skipif("HPCNCF_DATA" not in os.environ, reason="HPCNCF_DATA: no folder of the data")
def test_frappe_passes_the_papers_quality(tmp_path: Path) -> None:
    """Twelve of the sixteen epochs suffice for this seed; benchmarks/quality.py has five seeds."""
    prepare_frappe(tmp_path / "frappe", Path(os.environ["HPCNCF_DATA"]))
    settings = {"global_batch_size": 256, "seed": 0, "checkpoint_every": 0}
    rank = trainer(planned(tmp_path / "frappe", epochs=12, **settings), tmp_path / "run")
    rank.train()
    record = rank.record()
    assert record.parameters == 74_673
    assert record.epochs[-1].hr10 > 0.85
    assert record.epochs[-1].ndcg10 > 0.70
    assert record.epochs[-1].hr10_unseen < record.epochs[-1].hr10
