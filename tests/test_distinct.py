"""A step's distinct rows, and engine rowwise where the host does not know how many there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from make_runs import tiny
from torch import Tensor

from hpcncf.ncf import distinct, model
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.instances import Schedule
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.phases import StepClock
from hpcncf.ncf.rowwise import Rowwise
from hpcncf.spec import Model, Training

STEPS = 31


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return tiny(tmp_path_factory.mktemp("data") / "tiny")


@settings(max_examples=50)
@given(st.lists(st.integers(0, 12), max_size=20))
def test_padded_is_the_same_with_padding_behind(ids: list[int]) -> None:
    values = torch.tensor(ids, dtype=torch.int64)
    found, where = distinct.counted(values)
    ours, ours_where = distinct.padded(values, 99)
    assert ours.tolist() == found.tolist() + [99] * (len(ids) - len(found))
    assert ours_where.tolist() == where.tolist()


def rowwise(data: Prepared, device: str, padded: bool, begun: int = 0, **changes: Any) -> Rowwise:
    """After an epoch, whose last step is a smaller one, begun with so many steps behind it."""
    torch.set_num_threads(1)
    training = Training(engine="rowwise", loader="device", global_batch_size=50, **changes)
    start = model.initial(data.manifest, Model(), 1).to(device)
    clock, place = StepClock(STEPS, STEPS), torch.device(device)
    engine = Rowwise(start, training, place, clock, padded=padded)
    state = engine.state()
    if begun:
        for part in state.values():
            part["step"] = begun
        engine.load(state)
    schedule = Schedule(1501, 50)
    batches = engine.batches(Loader(data, training, schedule, place), 0, range(STEPS))
    for step in range(STEPS):
        engine.step(batches, 5 * schedule.positives(step))
    return engine


def tensors(state: Any) -> list[Tensor]:
    return [each for part in state.values() for each in part.values() if isinstance(each, Tensor)]


@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam", "sgd"])
def test_padding_changes_no_bit_of_what_is_computed(data: Prepared, optimizer: str) -> None:
    ours, theirs = (rowwise(data, "cpu", each, optimizer=optimizer) for each in (True, False))
    for engine in (ours, theirs):
        engine.settle()
    assert torch.equal(ours.loss, theirs.loss)
    assert model.sha256(ours.model) == model.sha256(theirs.model)
    for one, other in zip(tensors(ours.state()), tensors(theirs.state()), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("optimizer", "begun"), [("adam", 100), ("lazy_adam", 0), ("sgd", 0)])
def test_no_step_asks_for_a_value_on_the_host(data: Prepared, optimizer: str, begun: int) -> None:
    """Tensors of device meta have none: what would make a GPU wait fails there."""
    engine = rowwise(data, "meta", True, begun, optimizer=optimizer)
    assert engine.loss.is_meta
    with pytest.raises(NotImplementedError, match="unique"):
        rowwise(data, "meta", False, begun, optimizer=optimizer)


def test_adam_asks_for_one_where_it_catches_all_rows_up(data: Prepared) -> None:
    """At the tenth step, and where it settles."""
    with pytest.raises(NotImplementedError, match="nonzero"):
        rowwise(data, "meta", True, optimizer="adam")
