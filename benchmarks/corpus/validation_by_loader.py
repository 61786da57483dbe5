"""Validation over the whole set after every 50 steps, through a loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(30000, 64)
Y = X[:, :8].argmax(1)
train, val = TensorDataset(X[:10000], Y[:10000]), TensorDataset(X[10000:], Y[10000:])
tl, vl = DataLoader(train, 128, shuffle=True), DataLoader(val, 500)
m = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
opt = torch.optim.Adam(m.parameters())


@torch.no_grad()
def accuracy():
    m.eval()
    c = 0
    for x, y in vl:
        c += (m(x).argmax(-1) == y).sum().item()
    m.train()
    return c / 20000


step = 0
for ep in range(14):
    for x, y in tl:
        loss = nn.functional.cross_entropy(m(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 50 == 0:
            print(step, loss.item(), accuracy())
