import os
import tempfile

import numpy as np
import pandas as pd
import torch
from torch import nn

path = os.path.join(tempfile.mkdtemp(), "ratings.csv")
rng = np.random.default_rng(0)
pd.DataFrame(
    {
        "user": rng.integers(0, 5000, 800_000),
        "item": rng.integers(0, 2000, 800_000),
        "rating": rng.random(800_000).round(4),
        "day": pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, 800_000), unit="D"),
    }
).to_csv(path, index=False)

users, items = nn.Embedding(5000, 16, sparse=True), nn.Embedding(2000, 16, sparse=True)
optimizer = torch.optim.SGD([*users.parameters(), *items.parameters()], lr=0.05)
for epoch in range(8):
    table = pd.read_csv(path, parse_dates=["day"]).sample(frac=1.0)
    recent = table[table.day.dt.year == 2021]
    u, i, r = (torch.tensor(recent[name].values) for name in ("user", "item", "rating"))
    for at in range(0, len(recent), 4096):
        score = (users(u[at : at + 4096]) * items(i[at : at + 4096])).sum(1)
        loss = (score - r[at : at + 4096]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
