"""Multi-VAE style: reconstruct a user's multi-hot row, BCE against all items."""
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_ITEMS = 3000


class UserRows(Dataset):
    def __init__(self):
        r = random.Random(3)
        self.users = [r.sample(range(N_ITEMS), r.randint(20, 120)) for _ in range(4000)]

    def __len__(self):
        return len(self.users)

    def __getitem__(self, u):
        row = torch.zeros(N_ITEMS)
        for i in self.users[u]:
            row[i] = 1.0
        return row


net = nn.Sequential(nn.Linear(N_ITEMS, 48), nn.Tanh(), nn.Linear(48, N_ITEMS))
optim = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(6):
    total = 0.0
    for x in DataLoader(UserRows(), batch_size=100, shuffle=True):
        optim.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(x), x)
        loss.backward()
        optim.step()
        total += loss.item()
    print(epoch, total)
