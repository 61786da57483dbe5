"""How exactly products are computed, loss scaling, and torch's optimizers by their settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpcncf.job.spec import Model, Training
from hpcncf.ncf.engines.precision import (
    OptimizerSteps,
    build_optimizer,
)
from hpcncf.ncf.model import NeuMF


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


def test_sparse_gradients_are_the_same_mathematics() -> None:
    dense, sparse = stepped(optimizer="sgd")[0], stepped(optimizer="sgd", sparse=True)[0]
    for name, values in dense.state_dict().items():
        torch.testing.assert_close(sparse.state_dict()[name], values)
