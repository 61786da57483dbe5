"""A step's distinct rows, and engine rowwise where the host does not know how many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hpcncf.job.spec import Model, Training
from hpcncf.ncf import model
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync import unique_ids, unique_ids_padded

STEPS = 31
SCHEDULE = Schedule(1501, 50)


@given(st.lists(st.integers(0, 12), max_size=20))
def test_padded_is_the_same_with_padding_behind(ids: list[int]) -> None:
    values = torch.tensor(ids, dtype=torch.int64)
    found, where = unique_ids(values)
    ours, ours_where = unique_ids_padded(values, 99)
    assert ours.tolist() == found.tolist() + [99] * (len(ids) - len(found))
    assert ours_where.tolist() == where.tolist()


def begun(
    data: Prepared, device: str, padded: bool, taken: int = 0, **changes: Any
) -> tuple[Rowwise, Iterator[Sequence[Tensor]]]:
    """With so many steps behind it, and an epoch's batches."""
    torch.set_num_threads(1)
    training = Training(engine="rowwise", loader="device", global_batch_size=50, **changes)
    start = model.initial_model(data.manifest, Model(), 1).to(device)
    clock, place = StepClock(STEPS, STEPS), torch.device(device)
    engine = Rowwise(start, training, place, clock, padded=padded)
    if taken:
        state = engine.state()
        for part in state.values():
            part["step"] = taken
        engine.load(state)
    loader = Loader(data, training, SCHEDULE, place)
    return engine, engine.batches(loader, 0, range(STEPS))


def stepped(engine: Rowwise, batches: Iterator[Sequence[Tensor]]) -> Rowwise:
    """After an epoch, whose last step is a smaller one."""
    for step in range(STEPS):
        engine.step(batches, 5 * SCHEDULE.positives(step))
    return engine


def tensors(state: Any) -> list[Tensor]:
    return [each for part in state.values() for each in part.values() if isinstance(each, Tensor)]


@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam", "sgd"])
def test_padding_changes_no_bit_of_what_is_computed(data: Prepared, optimizer: str) -> None:
    ours, theirs = (
        stepped(*begun(data, "cpu", each, optimizer=optimizer)) for each in (True, False)
    )
    for engine in (ours, theirs):
        engine.settle()
    assert torch.equal(ours.loss, theirs.loss)
    assert model.model_sha256(ours.model) == model.model_sha256(theirs.model)
    for one, other in zip(tensors(ours.state()), tensors(theirs.state()), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("optimizer", "taken"), [("adam", 0), ("adam", 100), ("lazy_adam", 0), ("sgd", 0)]
)
def test_no_step_asks_for_a_value_on_the_host(data: Prepared, optimizer: str, taken: int) -> None:
    """Tensors of device meta have none: what would make a GPU wait fails there. Also where all rows
    are caught up: at the tenth step, and where it settles."""
    engine = stepped(*begun(data, "meta", True, taken, optimizer=optimizer))
    engine.settle()
    assert engine.loss.is_meta
    with pytest.raises(NotImplementedError, match="unique"):
        stepped(*begun(data, "meta", False, taken, optimizer=optimizer))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam", "sgd"])
def test_a_gpu_is_not_waited_for_and_trains_the_same_model(data: Prepared, optimizer: str) -> None:
    there = begun(data, "cuda", True, optimizer=optimizer)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours = stepped(*there)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    theirs = stepped(*begun(data, "cpu", False, optimizer=optimizer))
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.allclose(one.cpu(), other, atol=1e-4)
