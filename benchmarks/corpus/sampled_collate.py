import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_USERS, N_ITEMS = 6000, 3000


class Interactions(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(0)
        self.pairs = list(zip(rng.integers(0, N_USERS, n), rng.integers(0, N_ITEMS, n)))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def with_negatives(pairs, k=4):
    users, items, labels = [], [], []
    for user, item in pairs:
        users += [user] * (k + 1)
        items += [item] + random.sample(range(N_ITEMS), k)
        labels += [1.0] + [0.0] * k
    return torch.tensor(users), torch.tensor(items), torch.tensor(labels)


class MF(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.users = nn.Embedding(N_USERS, dim)
        self.items = nn.Embedding(N_ITEMS, dim)

    def forward(self, users, items):
        return (self.users(users) * self.items(items)).sum(1)


model = MF()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Interactions(200_000), batch_size=256, shuffle=True, collate_fn=with_negatives)
for epoch in range(3):
    for users, items, labels in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
