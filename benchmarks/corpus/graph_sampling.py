import random

import torch
from torch import nn

random.seed(0)
N = 20_000
adj = {n: [random.randrange(N) for _ in range(random.randint(3, 40))] for n in range(N)}
feats = torch.randn(N, 16)
labels = torch.randint(0, 4, (N,))


def sample_neighbors(nodes, fanout):
    out = []
    for n in nodes:
        out.append(random.choices(adj[n], k=fanout))
    return out


class SAGE(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(32, 32)
        self.l2 = nn.Linear(64, 4)

    def forward(self, x_self, x_n1, x_n2):
        h1 = self.l1(torch.cat([x_n1, x_n2.mean(2)], -1)).relu()
        h0 = self.l1(torch.cat([x_self, x_n1.mean(1)], -1)).relu()
        return self.l2(torch.cat([h0, h1.mean(1)], -1))


model = SAGE()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(260):
    seeds = random.sample(range(N), 256)
    hop1 = sample_neighbors(seeds, 10)
    hop2 = [sample_neighbors(ns, 5) for ns in hop1]
    s, h1, h2 = torch.tensor(seeds), torch.tensor(hop1), torch.tensor(hop2)
    loss = nn.functional.cross_entropy(model(feats[s], feats[h1], feats[h2]), labels[s])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, loss.item())
