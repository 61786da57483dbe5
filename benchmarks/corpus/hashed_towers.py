import hashlib
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BUCKETS = 50_000


def bucket(field, value):
    return int(hashlib.md5(f"{field}={value}".encode()).hexdigest(), 16) % BUCKETS


class Impressions(Dataset):
    def __init__(self, n):
        r = random.Random(0)
        self.rows = [
            ({"user": r.randrange(10**6), "country": r.choice("ABCDEF"), "device": r.choice("xyz"), "hour": r.randrange(24)},
             {"item": r.randrange(10**5), "brand": r.randrange(500), "cat": r.randrange(40), "price": r.randrange(90)})
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return self.rows[k]


def hash_batch(batch):
    user = torch.LongTensor([[bucket(k, v) for k, v in u.items()] for u, _ in batch])
    item = torch.LongTensor([[bucket(k, v) for k, v in i.items()] for _, i in batch])
    return user, item


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, 16, mode="sum", sparse=True)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return nn.functional.normalize(self.mlp(self.bag(x)), dim=-1)


user_tower, item_tower = Tower(), Tower()
opt = torch.optim.SGD([*user_tower.parameters(), *item_tower.parameters()], lr=0.1)
loader = DataLoader(Impressions(60_000), batch_size=256, shuffle=True, collate_fn=hash_batch, drop_last=True)
for epoch in range(3):
    for u, i in loader:
        logits = user_tower(u) @ item_tower(i).T / 0.1
        loss = nn.functional.cross_entropy(logits, torch.arange(len(u)))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
