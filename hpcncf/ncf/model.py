"""Contextual NeuMF (He et al. 2017)."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from hpcncf.data.manifest import Manifest
from hpcncf.job.spec import Model


class NeuMF(nn.Module):
    """GMF and an MLP over embeddings of their own, joined by one layer. Names are the paper's."""

    def __init__(self, users: int, items: int, context: int, sizes: Model) -> None:
        super().__init__()
        self.columns = context
        self.MF_Embedding_User = nn.Embedding(users, sizes.gmf_width)
        self.MF_Embedding_Item = nn.Embedding(items, sizes.gmf_width)
        self.MLP_Embedding_User = nn.Embedding(users, sizes.mlp_width)
        self.MLP_Embedding_Item = nn.Embedding(items, sizes.mlp_width)
        self.MLP_layers = _mlp(2 * sizes.mlp_width + context, sizes)
        self.predict_layer = nn.Linear(sizes.gmf_width + sizes.layers[-1], 1)
        tables, std = self.tables(), sizes.table_std
        for table in tables if std is not None else tables[:2]:
            nn.init.normal_(table.weight, std=sizes.embedding_std if std is None else std)

    def forward(self, users: Tensor, items: Tensor, context: Tensor) -> Tensor:
        """Compute logits [n] of users [n] and items [n] in context [n, columns]."""
        gmf = self.MF_Embedding_User(users) * self.MF_Embedding_Item(items)
        embedded = [self.MLP_Embedding_User(users), self.MLP_Embedding_Item(items), context]
        mlp = self.MLP_layers(torch.cat(embedded, dim=1))
        logits: Tensor = self.predict_layer(torch.cat([gmf, mlp], dim=1))
        return logits.squeeze(1)

    def tables(self) -> list[nn.Embedding]:
        """List the embeddings: MF user, MF item, MLP user, MLP item."""
        return [
            self.MF_Embedding_User,
            self.MF_Embedding_Item,
            self.MLP_Embedding_User,
            self.MLP_Embedding_Item,
        ]

    def layers(self) -> list[nn.Module]:
        """List the dense modules, whose parameters are all used in every step."""
        return [self.MLP_layers, self.predict_layer]


def _mlp(inputs: int, sizes: Model) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in sizes.layers:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        if sizes.dropout:
            layers.append(nn.Dropout(sizes.dropout))
        inputs = width
    return nn.Sequential(*layers)


def initial_model(manifest: Manifest, sizes: Model, seed: int) -> NeuMF:
    """Build the untrained model; the same seed gives the same bits. Seeds torch."""
    torch.manual_seed(seed)
    return NeuMF(manifest.users, manifest.items, len(manifest.context_columns), sizes)


def count_parameters(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def model_sha256(model: nn.Module) -> str:
    """SHA-256 of the bytes of all parameters, in the order of their names."""
    digest = hashlib.sha256()
    for name, values in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
