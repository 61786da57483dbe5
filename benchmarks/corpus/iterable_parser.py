import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Clicks(IterableDataset):
    def __init__(self, lines):
        self.lines = lines

    def __iter__(self):
        for line in self.lines:
            fields = line.split("\t")
            hashed = [hash(f"{n}:{value}") % 10_000 for n, value in enumerate(fields[1:])]
            yield torch.tensor(hashed), torch.tensor(float(fields[0]))


class FM(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Embedding(10_000, 1)
        self.v = nn.Embedding(10_000, 8)

    def forward(self, x):
        v = self.v(x)
        pairs = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
        return self.w(x).sum((1, 2)) + pairs


random.seed(0)
lines = ["\t".join([str(random.randint(0, 1)), *(str(random.randrange(500)) for _ in range(26))]) for _ in range(40_000)]
model = FM()
opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
for epoch in range(6):
    for x, y in DataLoader(Clicks(lines), batch_size=256):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
