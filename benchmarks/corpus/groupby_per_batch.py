import numpy as np
import pandas as pd
import torch
from torch import nn

rng = np.random.default_rng(0)
log = pd.DataFrame({
    "user_id": rng.integers(0, 3000, 150_000),
    "item_id": rng.integers(0, 800, 150_000),
    "dwell": rng.exponential(10, 150_000),
    "day": rng.integers(0, 30, 150_000),
})
users = log["user_id"].unique()
model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.Adam(model.parameters())


def make_features(batch_users):
    part = log[log["user_id"].isin(batch_users)]
    agg = part.groupby("user_id").agg(
        n=("item_id", "nunique"), dwell=("dwell", "mean"), last=("day", "max"), spread=("dwell", "std")
    )
    return torch.tensor(agg.fillna(0.0).to_numpy(), dtype=torch.float32)


for step in range(500):
    x = make_features(rng.choice(users, 128, replace=False))
    target = (x[:, 1] > 10).float()
    loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(-1), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, loss.item())
