from collections import defaultdict

import torch
from torch import nn

torch.manual_seed(0)


def gauc(users, labels, scores):
    """AUC within each user, weighted by the user's impressions."""
    by_user = defaultdict(list)
    for user, label, score in zip(users, labels, scores):
        by_user[user].append((score, label))
    total, weight = 0.0, 0
    for rows in by_user.values():
        rows.sort()
        positives = sum(label for _, label in rows)
        negatives = len(rows) - positives
        if positives == 0 or negatives == 0:
            continue
        rank_sum = 0
        for rank, (_, label) in enumerate(rows, start=1):
            if label:
                rank_sum += rank
        auc = (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
        total += auc * len(rows)
        weight += len(rows)
    return total / max(weight, 1)


class CTR(nn.Module):
    def __init__(self, n_users, n_items):
        super().__init__()
        self.u = nn.Embedding(n_users, 16)
        self.i = nn.Embedding(n_items, 16)
        self.net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, i):
        return self.net(torch.cat([self.u(u), self.i(i)], -1)).squeeze(-1)


def make(n, n_users=5_000, n_items=3_000):
    u, i = torch.randint(0, n_users, (n,)), torch.randint(0, n_items, (n,))
    return u, i, ((u + i) % 7 < 2).long()


def evaluate(model, data):
    model.eval()
    u, i, y = data
    with torch.no_grad():
        scores = torch.cat([model(a, b) for a, b in zip(u.split(10_000), i.split(10_000))])
    return gauc(u.tolist(), y.tolist(), scores.tolist())


def fit(model, train, valid, epochs=45, batch=1000):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    u, i, y = train
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(len(u)).split(batch):
            loss = nn.functional.binary_cross_entropy_with_logits(
                model(u[rows], i[rows]), y[rows].float()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} gauc {evaluate(model, valid):.4f}")


fit(CTR(5_000, 3_000), make(40_000), make(200_000))
