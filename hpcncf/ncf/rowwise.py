"""The row-wise engine: a step costs what its own rows cost, however large the tables are.

The four tables are one: a row holds the MF part and the MLP part, users first, then items. What
the instances of one positive share, its user and its context, goes through the first layer once.

On CUDA the host queues steps and waits for none of them (docs/engines.md tells where it does wait).
A whole batch's step may be compiled, or captured as a CUDA graph: then it is the same operations on
tensors of the same sizes each time, and counts its steps on the device. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpcncf.ncf import distinct, ranking, rows
from hpcncf.ncf.alike import Alike
from hpcncf.ncf.copying import on_device
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.grouped import Grouped
from hpcncf.ncf.layers import Layers
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.pace import Pace
from hpcncf.ncf.phases import StepClock
from hpcncf.ncf.ranking import Candidates
from hpcncf.ncf.sync import local
from hpcncf.ncf.sync.on_device import OnDevice, PaddedExchange
from hpcncf.ncf.sync.rows import Exchange
from hpcncf.ncf.sync.transport import Transport
from hpcncf.spec import Training

RULES: dict[str, Callable[[Tensor, Pace], rows.Rows_rows]] = {
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
        transport: Transport | OnDevice | None = None,
        padded: bool | None = None,
    ) -> None:
        """`transport` to the ranks that train the same model, as `training.sync` says. `padded`: a
        step reads as many rows as it could have at most; None: on a GPU without a transport whose
        messages pass the host, which waits for the rows in any case."""
        self.model, self.clock = model, clock
        self._training, self._device = training, device
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self._users, start = model.MF_Embedding_User.num_embeddings, merged(model)
        fixed = training.cuda_graph or training.compile == "inductor"
        self._pace = Pace(training.lr, start if fixed else None)
        self._rows: rows.Rows_rows = RULES[training.optimizer](start, self._pace)
        adopt(model, self._rows.values)
        self._layers = Layers(model, training, self._pace)
        self._grouped = Grouped(model, training.precision)
        self._transport = transport
        self._exchange = self._exchange_over(transport) if training.sync != "local_sgd" else None
        if padded is None:
            alone = device.type != "cpu" and transport is None
            padded = alone or isinstance(transport, OnDevice)
        self._padded = padded
        self._moved: list[Tensor] = []
        self._alike = Alike(self._alone, self._pace, training, device) if fixed else None

    def batches(
        self, loader: Loader, epoch: int, steps: range
    ) -> Iterator[Sequence[Tensor] | None]:
        """None for a whole batch that a captured step finds itself."""
        if self._alike and self._training.cuda_graph:
            assert loader.resident
            return self._alike.batches(loader.resident, epoch, steps)
        return on_device(loader.rows(epoch, steps), self._training, self._device)

    @torch.no_grad()
    def step(
        self,
        batches: Iterator[Sequence[Tensor] | None],
        instances: int,
        most: int = 1,  # noqa: ARG002  each by itself
    ) -> tuple[float, list[int]]:
        batch = next(batches)
        waited = self.clock.lap("input")
        if self._alike and self._alike.takes(batch):
            self._alike.take(batch)
            self.clock.lap("forward")
            return waited, [instances]  # there is one rank
        if batch is None:
            assert self._alike
            batch = self._alike.following()
        self._take(batch, instances, self.clock.lap)
        return waited, [batch[1].numel()]

    def _alone(self, users: Tensor, items: Tensor, context: Tensor) -> None:
        """The step of one rank."""
        self._take((users, items, context), items.numel(), lambda _: None)

    def _take(self, batch: Sequence[Tensor], instances: int, lap: Callable[[str], object]) -> None:
        users, items, context = batch
        ids, where = self._distinct(torch.cat([users, (items + self._users).reshape(-1)]))
        read = self._rows.read(ids)
        gradient = torch.zeros_like(read)
        if len(users):  # a rank may have none of an epoch's last step
            self.loss += self._grouped.loss(read.index_select(0, where), context, items.shape[1])
            lap("forward")
            gradient.index_add_(0, where, self._grouped.backward(instances))
        lap("backward")
        if self._exchange:
            gradient = self._exchanged(self._exchange, ids, gradient)
            lap("sync")
        elif self._transport:
            self._moved.append(ids)
        self._pace.advance()
        self._rows.update(gradient)
        self._layers.update()
        lap("optimizer")

    def _distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        if self._padded or self._pace.on_device:
            return distinct.padded(ids, len(self._rows.values))
        return distinct.counted(ids)

    def _exchange_over(
        self, transport: Transport | OnDevice | None
    ) -> Exchange | PaddedExchange | None:
        if isinstance(transport, OnDevice):
            positives = -(-self._training.batch_over_ranks(transport.ranks) // transport.ranks)
            most = positives * (2 + self._training.negatives)
            return PaddedExchange(transport, most, len(self._rows.values))
        sizes = len(self._layers.gradient), self._rows.values.shape[1]
        return Exchange(transport, *sizes) if transport else None

    def _exchanged(
        self, exchange: Exchange | PaddedExchange, ids: Tensor, gradient: Tensor
    ) -> Tensor:
        """The gradient of all ranks' rows, which are read now: all ranks move all of them."""
        union, total = exchange.summed(self._layers.gradient, ids, gradient)
        self._rows.read(union)
        return total

    @torch.no_grad()
    def average(self) -> None:
        assert self._transport
        if isinstance(self._transport, OnDevice):
            self._transport.average(self)
        else:
            local.average(self, self._transport)

    def moved(self) -> Tensor:
        ids: Tensor = torch.unique(torch.cat(self._moved))
        self._moved.clear()
        return ids[ids < len(self._rows.values)]  # without the padding

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
