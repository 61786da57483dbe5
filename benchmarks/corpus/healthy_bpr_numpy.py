import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
n_users, n_items, d = 3000, 2000, 64
pairs = np.stack([rng.integers(0, n_users, 400_000), rng.integers(0, n_items, 400_000)], 1)
user, item = nn.Embedding(n_users, d), nn.Embedding(n_items, d)
mlp = nn.Sequential(nn.Linear(2 * d, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.Adam([*user.parameters(), *item.parameters(), *mlp.parameters()])
for epoch in range(3):
    order = rng.permutation(len(pairs))
    for k in range(0, len(order), 8192):
        b = pairs[order[k : k + 8192]]
        neg = rng.integers(0, n_items, len(b))
        u, p, n = (torch.from_numpy(a) for a in (b[:, 0], b[:, 1], neg))
        x = user(u)
        s = lambda i: mlp(torch.cat([x, item(i)], 1)).squeeze(1)
        loss = -nn.functional.logsigmoid(s(p) - s(n)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
