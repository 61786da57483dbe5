"""The model is the paper's, of the size the design says, and starts from the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hpcncf.job.spec import Model
from hpcncf.ncf import model
from hpcncf.ncf.model import NeuMF


@pytest.mark.parametrize(
    ("users", "items", "expected"), [(654, 1_127, 74_673), (215_366, 95_895, 12_453_873)]
)
def test_the_parameters_are_counted_as_in_the_design(users: int, items: int, expected: int) -> None:
    with torch.device("meta"):
        assert model.count_parameters(NeuMF(users, items, 21, Model())) == expected


def test_the_output_is_the_papers_formula() -> None:
    torch.manual_seed(0)
    sizes = Model(gmf_width=2, mlp_width=3, layers=(4,))
    net = NeuMF(5, 6, 2, sizes)
    user, item, context = torch.tensor([3]), torch.tensor([5]), torch.tensor([[0.5, -1.0]])
    gmf = net.MF_Embedding_User.weight[3] * net.MF_Embedding_Item.weight[5]
    joined = torch.cat(
        [net.MLP_Embedding_User.weight[3], net.MLP_Embedding_Item.weight[5], context[0]]
    )
    linear = net.MLP_layers[0]
    hidden = (linear.weight @ joined + linear.bias).clamp(min=0)
    last = net.predict_layer
    expected = last.weight[0] @ torch.cat([gmf, hidden]) + last.bias[0]
    torch.testing.assert_close(net(user, item, context)[0], expected)


@pytest.mark.parametrize(
    ("settings", "mf", "mlp"),
    [
        ({}, 0.01, 1.0),
        ({"init": "torch", "embedding_std": 0.1}, 0.1, 1.0),
        ({"init": "paper"}, 0.01, 0.01),
        ({"init": 0.5}, 0.5, 0.5),
    ],
)
def test_the_tables_start_as_the_settings_say(
    settings: dict[str, Any], mf: float, mlp: float
) -> None:
    torch.manual_seed(1)
    net = NeuMF(2000, 2000, 21, Model(**settings))
    spreads = [float(table.weight.detach().std()) for table in net.tables()]
    assert spreads == pytest.approx([mf, mf, mlp, mlp], rel=0.05)


def test_equal_bits_have_equal_digests_and_one_changed_bit_another() -> None:
    nets = []
    for _ in range(2):
        torch.manual_seed(7)
        nets.append(NeuMF(5, 6, 2, Model()))
    assert model.model_sha256(nets[0]) == model.model_sha256(nets[1])
    with torch.no_grad():
        first = nets[1].predict_layer.bias
        first[0] = torch.nextafter(first[0], torch.tensor(10.0))
    assert model.model_sha256(nets[0]) != model.model_sha256(nets[1])


def test_dropout_is_there_only_where_it_is_asked_for() -> None:
    kinds = {type(layer) for layer in NeuMF(3, 4, 0, Model()).MLP_layers}
    assert torch.nn.Dropout not in kinds
    asked = [type(layer) for layer in NeuMF(3, 4, 0, Model(dropout=0.2)).MLP_layers]
    assert asked.count(torch.nn.Dropout) == 3
