"""How exactly products are computed, loss scaling, and torch's optimizers by their settings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpcncf.data.prepared import Prepared
from hpcncf.job.spec import Model, Training
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.engines.precision import (
    OptimizerSteps,
    Products,
    build_optimizer,
    tf32_allowed,
)
from hpcncf.ncf.engines.rowwise import Rowwise
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.model import NeuMF, initial_model
from hpcncf.ncf.step_clock import StepClock

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_factors_are_rounded_and_sums_are_not(half: str) -> None:
    """4,097 ones: float16 counts by twos from 2,048 on, bfloat16 from 256 on."""
    ones, products = torch.ones(1, 4097), Products(half)
    assert products.multiply(ones, ones.T).item() == 4097
    third = torch.full((1, 1), 1 / 3)
    rounded = third.to(getattr(torch, half)).float()
    assert products.multiply(third, torch.ones(1, 1)).item() == rounded.item() != third.item()
    total = torch.ones(1, 1)
    products.accumulate(total, ones, ones.T)
    assert total.item() == products.multiply_add(torch.ones(1), ones, ones.T).item() == 4098


def rowwise(data: Prepared, half: str, batch: int, device: str = "cpu") -> Rowwise:
    """After an epoch."""
    training = Training(engine="rowwise", precision=half, global_batch_size=batch)
    schedule, place = Schedule(1501, batch), torch.device(device)
    start = initial_model(data.manifest, Model(), 1).to(place)
    engine = Rowwise(start, training, place, StepClock(1, schedule.steps))
    batches = engine.batches(Loader(data, training, schedule), 0, range(schedule.steps))
    for step in range(schedule.steps):
        engine.step(batches, 5 * schedule.positives(step))
    engine.settle()
    return engine


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("batch", [50, 1501])
def test_a_rowwise_step_in_halves_is_near_that_in_float32_and_is_not_it(
    data: Prepared, half: str, batch: int
) -> None:
    """Also of 7,505 instances at once, each of which counts for so little that float16 would lose
    it, were it not divided behind the products."""
    torch.set_num_threads(1)
    ours, theirs = rowwise(data, half, batch), rowwise(data, "float32", batch)
    assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=2e-3)
    assert not torch.equal(ours.model.predict_layer.weight, theirs.model.predict_layer.weight)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert one.dtype == torch.float32
        assert (one - other).square().mean().sqrt() < 2e-3


def steps(**settings: Any) -> tuple[OptimizerSteps, nn.Parameter]:
    torch.manual_seed(1)
    model = NeuMF(3, 4, 1, Model(layers=(2,)))
    optimizer = build_optimizer(model, Training(**settings))
    taken = OptimizerSteps(optimizer, Training(**settings), "cpu")
    return taken, model.predict_layer.weight


def test_a_step_whose_gradient_is_not_finite_is_skipped_counted_and_the_next_scaled_less() -> None:
    taken, weight = steps(precision="float16")
    before = weight.detach().clone()
    first = float(taken.scale(torch.ones(())))
    for factor in (float("inf"), 1.0):
        taken.scale((weight * factor).sum()).backward()  # type: ignore[no-untyped-call]
        taken.step()
        assert torch.equal(weight, before) == (factor != 1.0)
        assert taken.skipped == 1
    assert float(taken.scale(torch.ones(()))) == first / 2


def test_where_nothing_is_scaled_no_step_can_be_skipped() -> None:
    taken, _ = steps()
    assert taken.skipped is None
    loss = torch.ones(())
    assert taken.scale(loss) is loss


@pytest.mark.parametrize(("device", "within"), [("cpu", "highest"), ("cuda", "high")])
def test_tf32_is_allowed_on_a_gpu_only_while_it_trains(device: str, within: str) -> None:
    with tf32_allowed(Training(tf32=True), torch.device(device)):
        assert torch.get_float32_matmul_precision() == within
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_a_gpus_halves_are_as_near(data: Prepared, half: str) -> None:
    ours, theirs = rowwise(data, half, 50, "cuda"), rowwise(data, "float32", 50)
    assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=2e-3)


def stepped(times: int = 3, **settings: Any) -> tuple[NeuMF, Any]:
    """A model of 6 users after steps of which users 0 and 1 alone are part."""
    torch.manual_seed(1)
    model = NeuMF(6, 9, 2, Model())
    optimizer = build_optimizer(model, Training(lr=0.01, **settings))
    for _ in range(times):
        step(model, optimizer)
    return model, optimizer


def step(model: NeuMF, optimizer: Any) -> None:
    users, items = torch.tensor([0, 1, 1]), torch.tensor([2, 3, 4])
    optimizer.zero_grad()
    model(users, items, torch.ones(3, 2)).sum().backward()
    optimizer.step()


def user_row(model: NeuMF, number: int) -> Tensor:
    return model.MLP_Embedding_User.weight[number].detach().clone()


@pytest.mark.parametrize("adam", ["foreach", "fused"])
def test_torchs_versions_of_adam_agree(adam: str) -> None:
    default, other = stepped()[0], stepped(adam=adam)[0]
    for name, values in default.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "moves"),
    [
        ({}, True),
        ({"optimizer": "lazy_adam", "sparse": True}, False),
        ({"optimizer": "sgd"}, False),
        ({"optimizer": "sgd", "sparse": True}, False),
        ({"optimizer": "sgd", "weight_decay": 0.1}, True),
    ],
)
def test_a_row_that_no_batch_has_any_more_moves_by_adam_and_by_decay_only(
    settings: dict[str, Any], moves: bool
) -> None:
    model, optimizer = stepped(**settings)
    before = user_row(model, 0)
    optimizer.zero_grad()
    model(torch.tensor([3]), torch.tensor([5]), torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(user_row(model, 0), before) != moves


@pytest.mark.parametrize(
    "settings", [{"optimizer": "lazy_adam", "sparse": True}, {"adam": "fused"}]
)
def test_a_state_goes_on_to_the_same_bits(settings: dict[str, Any]) -> None:
    model, optimizer = stepped(**settings)
    again, fresh = stepped(0, **settings)
    again.load_state_dict(model.state_dict())
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer)
    step(again, fresh)
    for name, values in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], values)


def test_sparse_gradients_are_the_same_mathematics() -> None:
    dense, sparse = stepped(optimizer="sgd")[0], stepped(optimizer="sgd", sparse=True)[0]
    for name, values in dense.state_dict().items():
        torch.testing.assert_close(sparse.state_dict()[name], values)
