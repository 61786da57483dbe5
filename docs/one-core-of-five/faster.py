"""The same training: whole batches, and updates of the rows that a batch reads."""

import sys

import torch
from torch import nn

from hpcncf.remedies import BatchLoader, NegativeSampler, rowwise

N_USERS, N_ITEMS, NEGATIVES = 20_000, 5_000, 4
EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
torch.manual_seed(1)


def interactions(n=40_000):
    """Users of ten tastes; nine of ten clicks follow the taste."""
    users = torch.randint(N_USERS, (n,))
    own = torch.randint(N_ITEMS // 10, (n,)) * 10 + users % 10
    return users, torch.where(torch.rand(n) < 0.9, own, torch.randint(N_ITEMS, (n,)))


class NCF(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.user = nn.Embedding(N_USERS, width)
        self.item = nn.Embedding(N_ITEMS, width)
        self.mlp = nn.Sequential(nn.Linear(2 * width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, users, items):
        pair = torch.cat([self.user(users), self.item(items)], -1)
        return self.mlp(pair).squeeze(-1)


users, items = interactions()
sampler = NegativeSampler(users, items, N_ITEMS)
loader = BatchLoader(
    users,
    items,
    batch_size=256,
    shuffle=True,
    transform=lambda users, items: sampler.labelled(users, items, NEGATIVES),
)
model = NCF()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
rowwise(model, optimizer)
loss_of = nn.BCEWithLogitsLoss()
for epoch in range(EPOCHS):
    total = 0.0
    for u, i, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(u, i), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch + 1}: loss {total / len(loader):.4f}", flush=True)
