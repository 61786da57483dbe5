"""CTR model, hashed features in EmbeddingBags, Adam."""

import torch
from torch import nn


class CTR(nn.Module):
    def __init__(self, fields=6, buckets=100_000, dim=16):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(buckets, dim, mode="sum") for _ in range(fields))
        self.deep = nn.Sequential(nn.Linear(fields * dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, xs):
        return self.deep(torch.cat([b(x) for b, x in zip(self.bags, xs)], 1)).squeeze(1)


model = CTR()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
crit = nn.BCEWithLogitsLoss()
for step in range(150):
    xs = [torch.randint(0, 100_000, (256, 3)) for _ in range(6)]
    y = torch.randint(0, 2, (256,)).float()
    opt.zero_grad()
    loss = crit(model(xs), y)
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, float(loss))
