"""Many short trainings (grid search) in one process; each rebuilds the data with Python loops."""

import itertools, random, torch
from torch import nn

raw = [(random.randrange(1000), random.randrange(1000), random.random()) for _ in range(50000)]


def prepare(raw, seed):
    rows = list(raw)
    random.Random(seed).shuffle(rows)
    by_user = {}
    for u, i, r in rows:
        by_user.setdefault(u, []).append((i, r))
    tr, te = [], []
    for u, items in by_user.items():
        items.sort(key=lambda t: t[1])
        te += [(u, *x) for x in items[:1]]
        tr += [(u, *x) for x in items[1:]]
    t = lambda z: (
        torch.tensor([a[0] for a in z]),
        torch.tensor([a[1] for a in z]),
        torch.tensor([a[2] for a in z]),
    )
    return t(tr), t(te)


for lr, d, seed in itertools.product([0.1, 0.01, 0.001], [8, 16], range(10)):
    (u, i, r), _ = prepare(raw, seed)
    U, I = nn.Embedding(1000, d), nn.Embedding(1000, d)
    opt = torch.optim.SGD([*U.parameters(), *I.parameters()], lr=lr)
    for b in range(0, len(u), 4096):
        l = ((U(u[b : b + 4096]) * I(i[b : b + 4096])).sum(1) - r[b : b + 4096]).pow(2).mean()
        opt.zero_grad()
        l.backward()
        opt.step()
    print(lr, d, seed, l.item())
