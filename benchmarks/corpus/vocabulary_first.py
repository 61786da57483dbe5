import random

import torch
from torch import nn


def read_log(n):
    rng = random.Random(0)
    for _ in range(n):
        yield " ".join(f"item{int(rng.paretovariate(1.1)) % 5000}" for _ in range(12))


def encode(lines):
    vocabulary, rows = {}, []
    for line in lines:
        row = []
        for word in line.split():
            if word not in vocabulary:
                vocabulary[word] = len(vocabulary)
            row.append(vocabulary[word])
        rows.append(row)
    return vocabulary, torch.tensor(rows)


vocabulary, rows = encode(read_log(180_000))
bag = nn.EmbeddingBag(len(vocabulary), 256)
out = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1))
opt = torch.optim.SGD([*bag.parameters(), *out.parameters()], lr=0.1)
for k in range(0, 90_000, 512):
    y = out(bag(rows[k : k + 512, :-1])).squeeze(1)
    loss = (y - rows[k : k + 512, -1] / 5000).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
