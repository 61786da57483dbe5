"""On the real data the model reaches what a correct implementation does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from make_runs import planned, trainer

from hpcncf.data.datasets import prepare_frappe
from hpcncf.job.spec import Model
from hpcncf.native.builds import cpu_flags, installed_builds, select_build

# The fastest that there is: all compute the same, as tests of each hold.
ENGINE = "native" if select_build(installed_builds(), cpu_flags()) else "reference"


@pytest.mark.slow
@pytest.mark.skipif("HPCNCF_DATA" not in os.environ, reason="HPCNCF_DATA: no folder of the data")
def test_frappe_passes_the_papers_quality(tmp_path: Path) -> None:
    """One seed, and as few epochs as the paper's start needs; benchmarks/quality.py has five."""
    prepare_frappe(tmp_path / "frappe", Path(os.environ["HPCNCF_DATA"]))
    settings = {"global_batch_size": 256, "seed": 0, "checkpoint_every": 0, "engine": ENGINE}
    run = planned(tmp_path / "frappe", model=Model(init="paper"), epochs=10, **settings)
    rank = trainer(run, tmp_path / "run")
    rank.train()
    record = rank.record()
    assert record.parameters == 74_673
    assert record.epochs[-1].hr10 > 0.85
    assert record.epochs[-1].ndcg10 > 0.70
    assert record.epochs[-1].hr10_unseen < record.epochs[-1].hr10
