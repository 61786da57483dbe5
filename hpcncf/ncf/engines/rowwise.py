"""Engine rowwise: one table, and updates of only the rows that a batch reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpcncf.job.spec import Training
from hpcncf.ncf.data.prepared import Prepared
from hpcncf.ncf.device_data import copied_to_device
from hpcncf.ncf.engines.cuda_graph import FixedSizeStep
from hpcncf.ncf.engines.precision import Products
from hpcncf.ncf.engines.row_optimizers import ROW_OPTIMIZERS, DenseLayers, RowTable, StepCounter
from hpcncf.ncf.evaluate import Candidates, rank_test_rows
from hpcncf.ncf.loaders import Loader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync.local_sgd import average_engine
from hpcncf.ncf.sync.rows import PaddedExchange, RowExchange, unique_ids, unique_ids_padded
from hpcncf.ncf.sync.transport import DeviceTransport, Transport

# The first layer is linear in its input: what user and context add to it is computed once for
# each
# positive, not for each instance. The gradients are written out, since autograd's bookkeeping
# would
# cost as much as this arithmetic.


class GroupedNetwork:
    """Of the model as it stands: it reads the layers' parameters, and adds to their gradients."""

    def __init__(self, model: NeuMF, precision: str) -> None:
        self._products = Products(precision)
        self._linear = [each for each in model.MLP_layers if isinstance(each, nn.Linear)]
        self._predict = model.predict_layer
        self._mf, self._mlp = (table.embedding_dim for table in model.tables()[::2])
        dropouts = [each.p for each in model.MLP_layers if isinstance(each, nn.Dropout)]
        self._kept = 1 - (dropouts[0] if dropouts else 0.0)

    def loss(self, rows: Tensor, context: Tensor, each: int) -> Tensor:
        """The sum of b * each instances' cross entropy, the first of each group the positive.

        `rows` are the b users' rows, then the b * each items'; `context` is [b, columns].
        """
        groups = len(context)
        mf, mlp = torch.split(rows, [self._mf, self._mlp], dim=1)
        self._mf_user, self._mf_item = mf[:groups, None], mf[groups:].view(groups, each, -1)
        self._mlp_item = mlp[groups:]
        self._shared = torch.cat([mlp[:groups], context], dim=1)
        first = self._linear[0]
        shared = self._products.multiply_add(first.bias, self._shared, self._of_shared().T)
        values = self._products.multiply(self._mlp_item, self._of_item(first.weight).T)
        values.view(groups, each, -1).add_(shared[:, None])
        self._hidden = [self._activated(values)]
        for layer in self._linear[1:]:
            values = self._products.multiply_add(layer.bias, self._hidden[-1][0], layer.weight.T)
            self._hidden.append(self._activated(values))
        of_mf, of_hidden = self._of_mf_and_hidden(self._predict.weight[0])
        self._gmf = self._mf_user * self._mf_item
        logits = torch.addmv(self._predict.bias, self._hidden[-1][0], of_hidden)
        logits.add_(torch.mv(self._gmf.view(-1, self._mf), of_mf))
        self._wrong = logits.sigmoid()
        self._wrong.view(groups, each)[:, 0] -= 1.0
        # Cross entropy of a logit z: log(1 + exp(z)) for a negative, that less z for a positive.
        return torch.nn.functional.softplus(logits).sum() - logits.view(groups, each)[:, 0].sum()

    def backward(self, instances: int) -> Tensor:
        """Gradients of the loss last computed, over `instances`: of its rows, and of the layers
        into their `grad`, which is zero before."""
        late = self._products.rounds
        wrong = self._wrong if late else self._wrong.div_(instances)
        of_mf, of_hidden = self._of_mf_and_hidden(self._predict.weight[0])
        to_mf, to_hidden = self._of_mf_and_hidden(_gradient(self._predict.weight)[0])
        to_mf.addmv_(self._gmf.view(-1, self._mf).T, wrong)
        to_hidden.addmv_(self._hidden[-1][0].T, wrong)
        _gradient(self._predict.bias).add_(wrong.sum())
        flowing = self._through(torch.outer(wrong, of_hidden), -1)
        for at in range(len(self._linear) - 1, 0, -1):
            layer = self._linear[at]
            self._products.accumulate(_gradient(layer.weight), flowing.T, self._hidden[at - 1][0])
            _gradient(layer.bias).add_(flowing.sum(dim=0))
            flowing = self._through(self._products.multiply(flowing, layer.weight), at - 1)
        user, item = self._first_layer(flowing)
        gmf = wrong.view(*self._mf_item.shape[:2], 1) * of_mf
        mf_user, mf_item = (gmf * self._mf_item).sum(dim=1), gmf * self._mf_user
        of_users = torch.cat([mf_user, user], dim=1)
        of_items = torch.cat([mf_item.view(-1, self._mf), item], dim=1)
        of_rows = torch.cat([of_users, of_items])
        if late:
            self._divide(of_rows, instances)
        return of_rows

    def _divide(self, of_rows: Tensor, instances: int) -> None:
        of_rows.div_(instances)
        for layer in (*self._linear, self._predict):
            _gradient(layer.weight).div_(instances)
            _gradient(layer.bias).div_(instances)

    def _first_layer(self, flowing: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the users' and of the items' MLP parts."""
        first = self._linear[0]
        of_group = flowing.view(*self._mf_item.shape[:2], -1).sum(dim=1)
        gradient, to_shared = (
            _gradient(first.weight),
            self._products.multiply(of_group.T, self._shared),
        )
        self._products.accumulate(self._of_item(gradient), flowing.T, self._mlp_item)
        gradient[:, : self._mlp] += to_shared[:, : self._mlp]
        gradient[:, 2 * self._mlp :] += to_shared[:, self._mlp :]
        _gradient(first.bias).add_(of_group.sum(dim=0))
        user = self._products.multiply(of_group, first.weight[:, : self._mlp])
        return user, self._products.multiply(flowing, self._of_item(first.weight))

    def _activated(self, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """ReLU and dropout, and what dropout multiplied by: drawn as torch's own draws it."""
        values.relu_()
        if self._kept == 1:
            return values, None
        noise = torch.empty_like(values).bernoulli_(self._kept).div_(self._kept)
        return values.mul_(noise), noise

    def _through(self, flowing: Tensor, at: int) -> Tensor:
        """Back through hidden layer `at`'s dropout and ReLU: 0 where either gave 0."""
        values, noise = self._hidden[at]
        if noise is not None:
            flowing.mul_(noise)
        return flowing.mul_(values > 0)

    def _of_item(self, weight: Tensor) -> Tensor:
        """The first layer's columns for the item, as those for the user stand before them."""
        return weight[:, self._mlp : 2 * self._mlp]

    def _of_shared(self) -> Tensor:
        weight = self._linear[0].weight
        return torch.cat([weight[:, : self._mlp], weight[:, 2 * self._mlp :]], dim=1)

    def _of_mf_and_hidden(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weight[: self._mf], weight[self._mf :]


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


# The four tables are one: a row holds the MF part and the MLP part, users first, then items.
# What
# the instances of one positive share, its user and its context, goes through the first layer
# once.
#
# On CUDA the host queues steps and waits for none of them (docs/engines.md tells where it does
# wait).
# A whole batch's step may be compiled, or captured as a CUDA graph: then it is the same
# operations on
# tensors of the same sizes each time, and counts its steps on the device. Not yet run on a GPU.


class Rowwise:
    """Plain torch, any layer widths. The model's parameters become views of its table."""

    def __init__(
        self,
        model: NeuMF,
        training: Training,
        device: torch.device,
        clock: StepClock,
        transport: Transport | DeviceTransport | None = None,
        padded: bool | None = None,
    ) -> None:
        """`transport` to the ranks that train the same model, as `training.sync` says. `padded`: a
        step reads as many rows as it could have at most; None: on a GPU without a transport whose
        messages pass the host, which waits for the rows in any case."""
        self.model, self.clock = model, clock
        self._training, self._device = training, device
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self._users, start = model.MF_Embedding_User.num_embeddings, merge_tables(model)
        fixed = training.cuda_graph or training.compile == "inductor"
        self._pace = StepCounter(training.lr, start if fixed else None)
        self._rows: RowTable = ROW_OPTIMIZERS[training.optimizer](start, self._pace)
        view_tables(model, self._rows.values)
        self._layers = DenseLayers(model, training, self._pace)
        self._grouped = GroupedNetwork(model, training.precision)
        self._transport = transport
        self._exchange = self._exchange_over(transport) if training.sync != "local_sgd" else None
        if padded is None:
            alone = device.type != "cpu" and transport is None
            padded = alone or isinstance(transport, DeviceTransport)
        self._padded = padded
        self._moved: list[Tensor] = []
        self._alike = FixedSizeStep(self._alone, self._pace, training, device) if fixed else None

    def batches(
        self, loader: Loader, epoch: int, steps: range
    ) -> Iterator[Sequence[Tensor] | None]:
        """None for a whole batch that a captured step finds itself."""
        if self._alike and self._training.cuda_graph:
            assert loader.resident
            return self._alike.batches(loader.resident, epoch, steps)
        return copied_to_device(loader.rows(epoch, steps), self._training, self._device)

    @torch.no_grad()
    def step(
        self,
        batches: Iterator[Sequence[Tensor] | None],
        instances: int,
        most: int = 1,  # noqa: ARG002  each by itself
    ) -> tuple[float, list[int]]:
        batch = next(batches)
        waited = self.clock.lap("input")
        if self._alike and self._alike.accepts(batch):
            self._alike.run(batch)
            self.clock.lap("forward")
            return waited, [instances]  # there is one rank
        if batch is None:
            assert self._alike
            batch = self._alike.next_batch()
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
            return unique_ids_padded(ids, len(self._rows.values))
        return unique_ids(ids)

    def _exchange_over(
        self, transport: Transport | DeviceTransport | None
    ) -> RowExchange | PaddedExchange | None:
        if isinstance(transport, DeviceTransport):
            positives = -(-self._training.batch_over_ranks(transport.ranks) // transport.ranks)
            most = positives * (2 + self._training.negatives)
            return PaddedExchange(transport, most, len(self._rows.values))
        sizes = len(self._layers.gradient), self._rows.values.shape[1]
        return RowExchange(transport, *sizes) if transport else None

    def _exchanged(
        self, exchange: RowExchange | PaddedExchange, ids: Tensor, gradient: Tensor
    ) -> Tensor:
        """The gradient of all ranks' rows, which are read now: all ranks move all of them."""
        union, total = exchange.summed(self._layers.gradient, ids, gradient)
        self._rows.read(union)
        return total

    @torch.no_grad()
    def average(self) -> None:
        assert self._transport
        average_engine(self, self._transport)

    def touched_rows(self) -> Tensor:
        ids: Tensor = torch.unique(torch.cat(self._moved))
        self._moved.clear()
        return ids[ids < len(self._rows.values)]  # without the padding

    def read_state(self, ids: Tensor) -> Tensor:
        return torch.cat([self._layers.parts.reshape(-1), self._rows.whole(ids).reshape(-1)])

    def write_state(self, ids: Tensor, part: Tensor) -> None:
        width, layers = self._rows.values.shape[1], self._layers.parts
        layers.copy_(part[: layers.numel()].view_as(layers))
        self._rows.replace(ids, part[layers.numel() :].view(-1, len(ids), width))

    @torch.no_grad()
    def settle(self) -> None:
        self._rows.settle()

    def ranks(
        self, data: Prepared, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        return rank_test_rows(self.model, data, first, last, candidates)

    def state(self) -> dict[str, Any]:
        return {"rows": self._rows.state(), "layers": self._layers.state()}

    def load(self, state: dict[str, Any]) -> None:
        self._rows.load(state["rows"])
        self._layers.load(state["layers"])


def merge_tables(model: NeuMF) -> Tensor:
    """All embeddings [users + items, mf + mlp]."""
    mf_user, mf_item, mlp_user, mlp_item = (table.weight.detach() for table in model.tables())
    users, items = torch.cat([mf_user, mlp_user], dim=1), torch.cat([mf_item, mlp_item], dim=1)
    return torch.cat([users, items])


def view_tables(model: NeuMF, values: Tensor) -> None:
    """Make the model's embeddings views of `values`, laid out as `merged` does."""
    mf_user, mf_item, mlp_user, mlp_item = model.tables()
    users, items = torch.split(values, [mf_user.num_embeddings, mf_item.num_embeddings])
    mf = mf_user.embedding_dim
    for table, part in ((mf_user, users[:, :mf]), (mlp_user, users[:, mf:])):
        table.weight = nn.Parameter(part)
    for table, part in ((mf_item, items[:, :mf]), (mlp_item, items[:, mf:])):
        table.weight = nn.Parameter(part)
