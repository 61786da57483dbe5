"""Engine rowwise: one table, and updates of only the rows that a batch reads.

A row holds an MF part and an MLP part, users first, then items. It runs on CPUs: a GPU is served by
engine reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hpcncf.data.prepared import PreparedData
from hpcncf.job.spec import Training
from hpcncf.ncf.batches import BatchRows
from hpcncf.ncf.engines.row_optimizers import (
    ROW_OPTIMIZERS,
    DenseLayers,
    OptimizedTable,
    StepCounter,
)
from hpcncf.ncf.evaluate import Candidates, rank_test_rows
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.step_clock import StepClock
from hpcncf.ncf.sync import RowExchange, Transport


class GroupedNetwork:
    """Forward and backward pass of groups, each a positive and its negatives.

    The first layer is linear in its input, so the share of user and context is computed once per
    group. The gradients are written out: autograd's bookkeeping would cost as much as the
    arithmetic. It reads the parameters of the layers and adds to their gradients.
    """

    def __init__(self, model: NeuMF) -> None:
        self._linear = [each for each in model.MLP_layers if isinstance(each, nn.Linear)]
        self._predict = model.predict_layer
        self._mf, self._mlp = (table.embedding_dim for table in model.tables()[::2])
        dropouts = [each.p for each in model.MLP_layers if isinstance(each, nn.Dropout)]
        self._kept = 1 - (dropouts[0] if dropouts else 0.0)

    def loss(self, rows: Tensor, context: Tensor, each: int) -> Tensor:
        """Sum of the cross entropy of b groups of `each` instances, the positive first.

        `rows` are the b users' rows, then the b * each items'; `context` is [b, columns].
        """
        groups = len(context)
        mf, mlp = torch.split(rows, [self._mf, self._mlp], dim=1)
        self._mf_user, self._mf_item = mf[:groups, None], mf[groups:].view(groups, each, -1)
        self._mlp_item = mlp[groups:]
        self._shared = torch.cat([mlp[:groups], context], dim=1)
        first = self._linear[0]
        shared = torch.addmm(first.bias, self._shared, self._of_shared().T)
        values = torch.mm(self._mlp_item, self._of_item(first.weight).T)
        values.view(groups, each, -1).add_(shared[:, None])
        self._hidden = [self._activated(values)]
        for layer in self._linear[1:]:
            values = torch.addmm(layer.bias, self._hidden[-1][0], layer.weight.T)
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
        """Compute the gradients of the last loss divided by `instances`.

        Returns the gradients of the rows and adds those of the layers to their `grad`, which
        must be zero before.
        """
        wrong = self._wrong.div_(instances)
        of_mf, of_hidden = self._of_mf_and_hidden(self._predict.weight[0])
        to_mf, to_hidden = self._of_mf_and_hidden(_gradient(self._predict.weight)[0])
        to_mf.addmv_(self._gmf.view(-1, self._mf).T, wrong)
        to_hidden.addmv_(self._hidden[-1][0].T, wrong)
        _gradient(self._predict.bias).add_(wrong.sum())
        flowing = self._through(torch.outer(wrong, of_hidden), -1)
        for at in range(len(self._linear) - 1, 0, -1):
            layer = self._linear[at]
            _gradient(layer.weight).addmm_(flowing.T, self._hidden[at - 1][0])
            _gradient(layer.bias).add_(flowing.sum(dim=0))
            flowing = self._through(torch.mm(flowing, layer.weight), at - 1)
        user, item = self._first_layer(flowing)
        gmf = wrong.view(*self._mf_item.shape[:2], 1) * of_mf
        mf_user, mf_item = (gmf * self._mf_item).sum(dim=1), gmf * self._mf_user
        of_users = torch.cat([mf_user, user], dim=1)
        of_items = torch.cat([mf_item.view(-1, self._mf), item], dim=1)
        return torch.cat([of_users, of_items])

    def _first_layer(self, flowing: Tensor) -> tuple[Tensor, Tensor]:
        """Backward pass through layer 1; returns gradients of the users' and items' MLP parts.

        It adds the gradients of the layer itself to its `grad`.
        """
        first = self._linear[0]
        of_group = flowing.view(*self._mf_item.shape[:2], -1).sum(dim=1)
        gradient = _gradient(first.weight)
        to_shared = torch.mm(of_group.T, self._shared)
        self._of_item(gradient).addmm_(flowing.T, self._mlp_item)
        gradient[:, : self._mlp] += to_shared[:, : self._mlp]
        gradient[:, 2 * self._mlp :] += to_shared[:, self._mlp :]
        _gradient(first.bias).add_(of_group.sum(dim=0))
        user = torch.mm(of_group, first.weight[:, : self._mlp])
        return user, torch.mm(flowing, self._of_item(first.weight))

    def _activated(self, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Apply ReLU and dropout in place; returns the values and the dropout factors.

        The factors are drawn as torch's own dropout draws them, and are None without dropout.
        """
        values.relu_()
        if self._kept == 1:
            return values, None
        noise = torch.empty_like(values).bernoulli_(self._kept).div_(self._kept)
        return values.mul_(noise), noise

    def _through(self, flowing: Tensor, at: int) -> Tensor:
        """Propagate gradients back through dropout and ReLU of hidden layer `at`, in place."""
        values, noise = self._hidden[at]
        if noise is not None:
            flowing.mul_(noise)
        return flowing.mul_(values > 0)

    def _of_item(self, weight: Tensor) -> Tensor:
        """Columns of the first layer's weights that belong to the item's MLP embedding."""
        return weight[:, self._mlp : 2 * self._mlp]

    def _of_shared(self) -> Tensor:
        weight = self._linear[0].weight
        return torch.cat([weight[:, : self._mlp], weight[:, 2 * self._mlp :]], dim=1)

    def _of_mf_and_hidden(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weight[: self._mf], weight[self._mf :]


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


class RowwiseEngine:
    """Engine in plain torch that updates only the table rows that a batch reads.

    Layers may have any widths. The model's embeddings become views of one table.
    """

    def __init__(
        self,
        model: NeuMF,
        training: Training,
        clock: StepClock,
        transport: Transport | None = None,
    ) -> None:
        """Merge the model's tables; `transport` leads to the other ranks, None for a rank alone."""
        self.model, self.clock = model, clock
        self.loss = torch.zeros((), dtype=torch.float64)
        self._users = model.MF_Embedding_User.num_embeddings
        self._counter = StepCounter(training.lr)
        self._rows: OptimizedTable = ROW_OPTIMIZERS[training.optimizer](
            merge_tables(model), self._counter
        )
        view_tables(model, self._rows.values)
        self._layers = DenseLayers(model, training, self._counter)
        self._grouped = GroupedNetwork(model)
        self._exchange: RowExchange | None = None
        if transport:
            width = self._rows.values.shape[1]
            self._exchange = RowExchange(transport, len(self._layers.gradient), width)

    def batches(self, loader: RankLoader, epoch: int, steps: range) -> Iterator[BatchRows]:
        return loader.rows(epoch, steps)

    @torch.no_grad()
    def step(
        self,
        batches: Iterator[BatchRows],
        instances: int,
        most: int = 1,  # noqa: ARG002  one step a call
    ) -> tuple[float, list[int]]:
        users, items, context = next(batches)
        waited, lap = self.clock.lap("input"), self.clock.lap
        all_ids = torch.cat([users, (items + self._users).reshape(-1)])
        ids, where = torch.unique(all_ids, return_inverse=True)
        read = self._rows.read(ids)
        gradient = torch.zeros_like(read)
        if len(users):  # a rank may have no row in an epoch's last step
            self.loss += self._grouped.loss(read.index_select(0, where), context, items.shape[1])
            lap("forward")
            gradient.index_add_(0, where, self._grouped.backward(instances))
        lap("backward")
        if self._exchange:
            union, gradient = self._exchange.summed(self._layers.gradient, ids, gradient)
            self._rows.read(union)  # every rank moves the rows of all ranks
            lap("sync")
        self._counter.advance()
        self._rows.update(gradient)
        self._layers.update()
        lap("optimizer")
        return waited, [items.numel()]

    @torch.no_grad()
    def settle(self) -> None:
        self._rows.settle()

    def ranks(
        self, data: PreparedData, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        return rank_test_rows(self.model, data, first, last, candidates)

    def state(self) -> dict[str, Any]:
        return {"rows": self._rows.state(), "layers": self._layers.state()}

    def load(self, state: dict[str, Any]) -> None:
        self._rows.load(state["rows"])
        self._layers.load(state["layers"])


def merge_tables(model: NeuMF) -> Tensor:
    """Concatenate all embeddings to one table [users + items, mf + mlp]."""
    mf_user, mf_item, mlp_user, mlp_item = (table.weight.detach() for table in model.tables())
    users, items = torch.cat([mf_user, mlp_user], dim=1), torch.cat([mf_item, mlp_item], dim=1)
    return torch.cat([users, items])


def view_tables(model: NeuMF, values: Tensor) -> None:
    """Replace the model's embeddings by views of `values`, laid out as by `merge_tables`."""
    mf_user, mf_item, mlp_user, mlp_item = model.tables()
    users, items = torch.split(values, [mf_user.num_embeddings, mf_item.num_embeddings])
    mf = mf_user.embedding_dim
    for table, part in ((mf_user, users[:, :mf]), (mlp_user, users[:, mf:])):
        table.weight = nn.Parameter(part)
    for table, part in ((mf_item, items[:, :mf]), (mlp_item, items[:, mf:])):
        table.weight = nn.Parameter(part)
