"""Train NCF on implicit feedback, as many scripts do: one sample at a time."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_USERS, N_ITEMS, NEGATIVES = 20_000, 5_000, 4
EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
random.seed(1)
torch.manual_seed(1)


def interactions(n=40_000):
    """Users of ten tastes; nine of ten clicks follow the taste."""
    users = torch.randint(N_USERS, (n,))
    own = torch.randint(N_ITEMS // 10, (n,)) * 10 + users % 10
    return users, torch.where(torch.rand(n) < 0.9, own, torch.randint(N_ITEMS, (n,)))


class Clicks(Dataset):
    def __init__(self, users, items):
        self.users, self.items = users.tolist(), items.tolist()
        self.seen = {}
        for user, item in zip(self.users, self.items):
            self.seen.setdefault(user, set()).add(item)

    def __len__(self):
        return len(self.users)

    def __getitem__(self, index):
        user = self.users[index]
        pool = list(set(range(N_ITEMS)) - self.seen[user])
        items = [self.items[index]] + random.sample(pool, NEGATIVES)
        labels = [1.0] + [0.0] * NEGATIVES
        return torch.tensor([user] * len(items)), torch.tensor(items), torch.tensor(labels)


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
loader = DataLoader(Clicks(users, items), batch_size=256, shuffle=True)
model = NCF()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
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
