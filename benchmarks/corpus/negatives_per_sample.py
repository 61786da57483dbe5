import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_USERS, N_ITEMS = 2000, 3000


class Interactions(Dataset):
    def __init__(self, n):
        rng = random.Random(0)
        self.pairs = [(rng.randrange(N_USERS), rng.randrange(N_ITEMS)) for _ in range(n)]
        self.seen = {}
        for u, i in self.pairs:
            self.seen.setdefault(u, set()).add(i)

    def __len__(self):
        return len(self.pairs)

    def negatives(self, u):
        pool = list(set(range(N_ITEMS)) - self.seen[u])
        return random.sample(pool, 4)

    def __getitem__(self, k):
        u, i = self.pairs[k]
        return u, torch.tensor([i, *self.negatives(u)])


class MF(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(N_USERS, 32)
        self.item = nn.Embedding(N_ITEMS, 32)

    def forward(self, u, i):
        return (self.user(u)[:, None] * self.item(i)).sum(-1)


model = MF()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Interactions(50_000), batch_size=256, shuffle=True)
for epoch in range(2):
    total = 0.0
    for u, i in loader:
        logits = model(u, i)
        target = torch.zeros_like(logits)
        target[:, 0] = 1
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total / len(loader))
