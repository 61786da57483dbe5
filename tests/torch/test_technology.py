"""The step that Numba compiles for the benchmark is hpcncf's, and what is made of its answers.

Numba is not installed here: its functions are Python, and run as such.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.technology import __main__ as technology
from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model, sampling
from hpcncf.ncf.data import synthetic
from hpcncf.ncf.data.prepared import Prepared, load_prepared
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.instances import Schedule
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock

ROOT = Path(__file__).parents[2]
STEP = ROOT / "benchmarks/technology/numba_step"
SEED, POSITIVES, STEPS = 3, 32, 4


@pytest.fixture(scope="module", params=["blas", "loops"])
def numba_step(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """`step` with Numba's two words made to do nothing."""
    numba, prefetching = ModuleType("numba"), ModuleType("prefetching")
    numba.njit = lambda **_: lambda function: function  # type: ignore[attr-defined]
    prefetching.prefetch = lambda _array, _place: None  # type: ignore[attr-defined]
    ours = {path.stem for path in STEP.glob("*.py")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRODUCTS", request.param)
        patch.syspath_prepend(str(STEP))
        patch.setitem(sys.modules, "numba", numba)
        for name in ours:
            patch.delitem(sys.modules, name, raising=False)
        patch.setitem(sys.modules, "prefetching", prefetching)
        yield importlib.import_module("step")
        for name in ours:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Some users have so many positives that their list is halved, others few."""
    folder = tmp_path_factory.mktemp("data") / "made"
    synthetic.prepare_synthetic(folder, users=12, items=700, train_rows=1_500, context=21)
    return load_prepared(folder)


def opened(data: Prepared) -> Any:
    rows = (data.train_rows, data.positives_indptr, data.positives)
    each = sampling.rows_per_block(data.manifest.train_rows)
    return sys.modules["drawing"].opened(*map(np.asarray, rows), data.manifest.items, each)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(("many", "start"), [(10_000, 128), (100, 130), (100, 1_424)])
def test_it_draws_hpcncfs_instances(
    numba_step: ModuleType,
    data: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    many: int,
    start: int,
) -> None:
    monkeypatch.setattr(sampling, "MANY_ROWS", many)
    monkeypatch.setattr(sys.modules["drawing"], "FEW", 128)
    held = np.diff(data.positives_indptr)
    assert held.min() <= 128 < held.max()
    batch, seed, epoch = sys.modules["drawing"].room(64), np.uint64(SEED), np.uint64(5)
    keys = numba_step.order_keys(seed, epoch)
    numba_step.draw(opened(data), batch, seed, epoch, keys, start, 64)
    rows = sampling.epoch_rows(SEED, 5, start, start + 64, len(data.train_rows))
    users = data.train_users[rows]
    drawn = sampling.sample_negatives(
        SEED, 5, rows, users, data.positives_indptr, data.positives, data.manifest.items, 4
    )
    assert (batch.rows == rows).all()
    assert (batch.users == users).all()
    assert (batch.items == np.column_stack([data.train_items[rows], drawn])).all()


@pytest.mark.usefixtures("numba_step")
@pytest.mark.parametrize("many", [0, 1, 2, 300, 699])
def test_every_number_draws_an_item_of_its_own(many: int) -> None:
    """Itself, or for a positive one from the end of those that are left."""
    positives = np.random.default_rng(many).permutation(700)[:many]
    positives.sort()
    absent = np.delete(np.arange(700), positives)
    stands_for = dict(zip(positives, reversed(absent), strict=False))
    for number in range(700 - many):
        drawn = sys.modules["drawing"].negative(number, 700 - many, positives)
        assert drawn == stands_for.get(number, number)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_it_trains_hpcncfs_model(numba_step: ModuleType, data: Prepared) -> None:
    training = Training(
        seed=SEED, optimizer="lazy_adam", engine="rowwise", global_batch_size=POSITIVES, lr=0.01
    )
    start = model.initial_model(data.manifest, Model(), SEED)
    memory = sys.modules["memory"]
    theirs = memory.model_from({name: each.numpy() for name, each in start.state_dict().items()})
    losses = np.zeros(STEPS)
    rooms = sys.modules["drawing"].room(POSITIVES), memory.room(POSITIVES)
    numba_step.train(opened(data), rooms[0], theirs, rooms[1], np.uint64(SEED), 0.01, 0, losses)

    schedule = Schedule(data.manifest.train_rows, POSITIVES)
    engine = Rowwise(start, training, torch.device("cpu"), StepClock(STEPS, STEPS))
    batches = engine.batches(Loader(data, training, schedule), 0, range(STEPS))
    sums = [0.0]
    for _ in range(STEPS):
        engine.step(batches, POSITIVES * 5)
        sums.append(float(engine.loss))
    assert losses == pytest.approx(np.diff(sums) / (POSITIVES * 5), rel=1e-5)
    mlp, mf = start.MLP_Embedding_Item.weight.detach(), start.MF_Embedding_Item.weight.detach()
    assert theirs.items[:, :32] == pytest.approx(mlp.numpy(), rel=1e-3, abs=1e-5)
    assert theirs.items[:, 32:40] == pytest.approx(mf.numpy(), rel=1e-3, abs=1e-5)


def test_losses_that_are_alike_pass_and_others_do_not() -> None:
    assert technology.checked({"a": [0.5, 0.4], "b": [0.5, 0.400004]}) == pytest.approx(1e-5)
    for wrong in (0.401, float("nan")):
        with pytest.raises(technology.Unlike, match=r"of b are .* from those of a"):
            technology.checked({"a": [0.5, 0.4], "b": [0.5, wrong]})


def test_numbas_environment_is_pinned() -> None:
    lines = (ROOT / "benchmarks/technology/requirements.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins.keys() == {"numba", "llvmlite", "numpy", "scipy"}
