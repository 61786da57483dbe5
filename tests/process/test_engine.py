"""What all engines have in common: they rank as the model they trained does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from make_runs import planned, trainer
from test_ranking import BOTH, by_forward, cases, whole_numbers

from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines import base
from hpcncf.ncf.engines.native.library import installed_builds
from hpcncf.ncf.evaluate import Candidates
from hpcncf.ncf.step_clock import StepClock

NEEDS_NATIVE = pytest.mark.skipif(not installed_builds(), reason="engine native was not built here")
ENGINES = ["reference", "rowwise", pytest.param("native", marks=NEEDS_NATIVE)]
EVERY = pytest.mark.parametrize("name", ENGINES)


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return folder


def ranks(of: base.Engine, data: Prepared, candidates: Candidates) -> list[int]:
    found: list[int] = torch.cat(list(of.ranks(data, 0, len(data.test_users), candidates))).tolist()
    return found


@BOTH
@EVERY
@given(case=cases(), seed=st.integers(0, 99))
def test_an_engine_ranks_as_scoring_each_pair_does(
    name: Any, candidates: Candidates, case: tuple[Model, Prepared], seed: int
) -> None:
    sizes, data = case
    # A user with all items has no negatives: no engine can train on that.
    assume(max(np.diff(data.positives_indptr)) < data.manifest.items)
    sizes = sizes.model_copy(update={"dropout": 0.0})
    net, training = whole_numbers(sizes, data, seed), Training(engine=name)
    expected = by_forward(net, data, candidates)
    schedule = Schedule(data.manifest.train_rows, 256)
    ground = base.EngineInputs(data, sizes, schedule, threads=1)
    made = base.build_engine(net, training, 1, torch.device("cpu"), StepClock(1, 1), ground)
    assert ranks(made, data, candidates) == expected


@EVERY
def test_what_is_ranked_is_what_training_settled(name: str, data: Path, tmp_path: Path) -> None:
    """Rows that the last steps left behind are caught up: the model alone ranks alike."""
    run = planned(data, engine=name, evaluation="full", max_steps=70)
    trained = trainer(run, tmp_path)
    trained.train()
    alone = model.initial_model(trained.data.manifest, Model(), 1)
    alone.load_state_dict(trained.model.state_dict())
    by_model = by_forward(alone, trained.data, "full")
    by_engine = ranks(trained.engine, trained.data, "full")
    assert sum(mine != its for mine, its in zip(by_engine, by_model, strict=True)) <= 1
    assert trained.record().epochs[-1].mrr == pytest.approx(
        sum(1 / (rank + 1) for rank in by_engine) / len(by_engine)
    )


def test_all_engines_reach_the_same_quality(data: Path, tmp_path: Path) -> None:
    """On the same instances: what differs is rounding, and with it a rank here and there."""
    reached = {}
    for name in ["reference", "rowwise", *(["native"] if installed_builds() else [])]:
        trained = trainer(planned(data, engine=name, epochs=3), tmp_path / name)
        trained.train()
        last = trained.record().epochs[-1]
        reached[name] = (last.hr10, last.ndcg10)
    one_rank_of_forty = 1 / 40 + 1e-9
    assert all(
        each == pytest.approx(reached["reference"], abs=one_rank_of_forty)
        for each in reached.values()
    ), reached
