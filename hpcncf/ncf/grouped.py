"""NeuMF's loss and gradients of a batch whose instances share their positive's user and context.

The first layer is linear in its input: what user and context add to it is computed once for each
positive, not for each instance. The gradients are written out, since autograd's bookkeeping would
cost as much as this arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.products import Products


class Grouped:
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
        shared = self._products.shifted(first.bias, self._shared, self._of_shared().T)
        values = self._products.of(self._mlp_item, self._of_item(first.weight).T)
        values.view(groups, each, -1).add_(shared[:, None])
        self._hidden = [self._activated(values)]
        for layer in self._linear[1:]:
            values = self._products.shifted(layer.bias, self._hidden[-1][0], layer.weight.T)
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
            self._products.add(_gradient(layer.weight), flowing.T, self._hidden[at - 1][0])
            _gradient(layer.bias).add_(flowing.sum(dim=0))
            flowing = self._through(self._products.of(flowing, layer.weight), at - 1)
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
        gradient, to_shared = _gradient(first.weight), self._products.of(of_group.T, self._shared)
        self._products.add(self._of_item(gradient), flowing.T, self._mlp_item)
        gradient[:, : self._mlp] += to_shared[:, : self._mlp]
        gradient[:, 2 * self._mlp :] += to_shared[:, self._mlp :]
        _gradient(first.bias).add_(of_group.sum(dim=0))
        user = self._products.of(of_group, first.weight[:, : self._mlp])
        return user, self._products.of(flowing, self._of_item(first.weight))

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
