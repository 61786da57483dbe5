"""Ranks of DistributedDataParallel with `rowwise` end where one process without it does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks_together import together
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from hpcncf.remedies import rowwise

ROWS, BATCH, STEPS = 30, 8, 30


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 4)
        self.bag = nn.EmbeddingBag(ROWS, 4, mode="sum")
        self.layer = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.layer(self.table(ids) * self.bag(ids[:, None]))
        return found.tanh()


def trained(rank: int = 0, ranks: int = 1, order: str = "") -> dict[str, Tensor]:
    torch.manual_seed(0)
    model: Any = Model().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    network = model
    if order == "rowwise first":
        rowwise(model, optimizer, small=0)
    if ranks > 1:
        network = DistributedDataParallel(model, static_graph=order == "static graph")
        if order == "own hook":
            network.register_comm_hook(network.process_group, allreduce_hook)
        if order != "rowwise first":
            rowwise(network, optimizer, small=0)
    batches = torch.Generator().manual_seed(3)
    share = BATCH // ranks
    for step in range(STEPS):
        ids = torch.randint(0, ROWS, (BATCH,), generator=batches)[rank * share : (rank + 1) * share]
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        (network(ids) ** 2).mean().backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.05)
        optimizer.step()
    found: dict[str, Tensor] = model.state_dict()
    return found


ORDERS = ["rowwise first", "wrapper first", "own hook", "static graph"]


def in_every_order(rank: int) -> dict[str, dict[str, Tensor]]:
    return {order: trained(rank, 2, order) for order in ORDERS}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, dict[str, Tensor]]]:
    """What each of two ranks has at the end, by order."""
    return together(2, in_every_order)


@pytest.mark.parametrize("order", ORDERS)
def test_two_ranks_end_where_one_process_does(
    ranks: list[dict[str, dict[str, Tensor]]], order: str
) -> None:
    first, second = (each[order] for each in ranks)
    for name, expected in trained().items():
        assert torch.equal(first[name], second[name])
        assert torch.allclose(first[name], expected, rtol=0, atol=1e-12)
