import random

import torch
from torch import nn


def build_history(events):
    history = {}
    for user, item, moment in events:
        history.setdefault(user, []).append((moment, item))
    for user in history:
        history[user] = [item for _, item in sorted(history[user])]
    return history


def parse(lines):
    return [tuple(map(int, line.split(","))) for line in lines]


random.seed(0)
lines = [f"{random.randrange(20000)},{random.randrange(5000)},{k}" for k in range(3_000_000)]
history = build_history(parse(lines))
pairs = torch.tensor([(u, h[-1]) for u, h in history.items()])

model = nn.Bilinear(8, 8, 1)
table = nn.Embedding(25_000, 8, sparse=True)
optimizer = torch.optim.SGD([*model.parameters(), *table.parameters()], lr=0.1)
for epoch in range(40):
    for batch in pairs.split(500):
        out = model(table(batch[:, 0]), table(batch[:, 1] + 20_000))
        loss = nn.functional.softplus(-out).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
