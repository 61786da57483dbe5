"""The row-wise engine: a step costs what its own rows cost, however large the tables are.

The four tables are one: a row holds the MF part and the MLP part, users first, then items. What
the instances of one positive share, its user and its context, goes through the first layer once.

On CUDA the host queues steps and waits for none of them (docs/engines.md tells where it does wait).
Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpcncf.ncf import distinct, ranking, rows
from hpcncf.ncf.copying import on_device
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.grouped import Grouped
from hpcncf.ncf.layers import Layers
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.phases import StepClock
from hpcncf.ncf.ranking import Candidates
from hpcncf.ncf.sync import local
from hpcncf.ncf.sync.rows import Exchange
from hpcncf.ncf.sync.transport import Transport
from hpcncf.spec import Training

RULES: dict[str, Callable[[Tensor, float], rows.Rows]] = {
    "adam": rows.Adam,
    "lazy_adam": rows.LazyAdam,
    "sgd": rows.Sgd,
}


class Rowwise:
    """Plain torch, any layer widths. The model's parameters become views of its table."""

    def __init__(
        self,
        model: NeuMF,
        training: Training,
        device: torch.device,
        clock: StepClock,
        transport: Transport | None = None,
        padded: bool | None = None,
    ) -> None:
        """`transport` to the ranks that train the same model, as `training.sync` says. `padded`: a
        step reads as many rows as it could have at most; None: on CUDA without a transport, whose
        messages wait for the rows in any case."""
        self.model, self.clock = model, clock
        self._training, self._device = training, device
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self._users = model.MF_Embedding_User.num_embeddings
        self._rows: rows.Rows = RULES[training.optimizer](merged(model), training.lr)
        adopt(model, self._rows.values)
        self._layers, self._grouped = Layers(model, training), Grouped(model)
        sizes = len(self._layers.gradient), self._rows.values.shape[1]
        self._transport, self._apart = transport, training.sync == "local_sgd"
        self._exchange = Exchange(transport, *sizes) if transport and not self._apart else None
        alone = device.type == "cuda" and transport is None
        self._padded = alone if padded is None else padded
        self._moved: list[Tensor] = []

    def batches(self, loader: Loader, epoch: int, steps: range) -> Iterator[Sequence[Tensor]]:
        return on_device(loader.rows(epoch, steps), self._training, self._device)

    @torch.no_grad()
    def step(self, batches: Iterator[Sequence[Tensor]], instances: int) -> tuple[float, int]:
        clock = self.clock
        users, items, context = next(batches)
        waited = clock.lap("input")
        ids, where = self._distinct(torch.cat([users, (items + self._users).reshape(-1)]))
        read = self._rows.read(ids)
        gradient = torch.zeros_like(read)
        if len(users):  # a rank may have none of an epoch's last step
            self.loss += self._grouped.loss(read.index_select(0, where), context, items.shape[1])
            clock.lap("forward")
            gradient.index_add_(0, where, self._grouped.backward(instances))
        clock.lap("backward")
        if self._exchange:
            gradient = self._exchanged(self._exchange, ids, gradient)
            clock.lap("sync")
        elif self._transport:
            self._moved.append(ids)
        self._rows.update(gradient)
        self._layers.update()
        clock.lap("optimizer")
        return waited, items.numel()

    def _distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        if self._padded:
            return distinct.padded(ids, len(self._rows.values))
        return distinct.counted(ids)

    def _exchanged(self, exchange: Exchange, ids: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of all ranks' rows, which are read now: all ranks move all of them."""
        union, total = exchange.summed(self._layers.gradient, ids, gradient)
        self._rows.read(union)
        return total

    @torch.no_grad()
    def average(self) -> None:
        assert self._transport
        local.average(self, self._transport)

    def moved(self) -> Tensor:
        ids: Tensor = torch.unique(torch.cat(self._moved))
        self._moved.clear()
        return ids

    def part(self, ids: Tensor) -> Tensor:
        return torch.cat([self._layers.parts.reshape(-1), self._rows.whole(ids).reshape(-1)])

    def replace(self, ids: Tensor, part: Tensor) -> None:
        width, layers = self._rows.values.shape[1], self._layers.parts
        layers.copy_(part[: layers.numel()].view_as(layers))
        self._rows.replace(ids, part[layers.numel() :].view(-1, len(ids), width))

    @torch.no_grad()
    def settle(self) -> None:
        self._rows.settle()

    def ranks(
        self, data: Prepared, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        return ranking.ranks(self.model, data, first, last, candidates)

    def state(self) -> dict[str, Any]:
        return {"rows": self._rows.state(), "layers": self._layers.state()}

    def load(self, state: dict[str, Any]) -> None:
        self._rows.load(state["rows"])
        self._layers.load(state["layers"])


def merged(model: NeuMF) -> Tensor:
    """All embeddings [users + items, mf + mlp]."""
    mf_user, mf_item, mlp_user, mlp_item = (table.weight.detach() for table in model.tables())
    users, items = torch.cat([mf_user, mlp_user], dim=1), torch.cat([mf_item, mlp_item], dim=1)
    return torch.cat([users, items])


def adopt(model: NeuMF, values: Tensor) -> None:
    """Make the model's embeddings views of `values`, laid out as `merged` does."""
    mf_user, mf_item, mlp_user, mlp_item = model.tables()
    users, items = torch.split(values, [mf_user.num_embeddings, mf_item.num_embeddings])
    mf = mf_user.embedding_dim
    for table, part in ((mf_user, users[:, :mf]), (mlp_user, users[:, mf:])):
        table.weight = nn.Parameter(part)
    for table, part in ((mf_item, items[:, :mf]), (mlp_item, items[:, mf:])):
        table.weight = nn.Parameter(part)
