import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class RatingsDataset(Dataset):
    def __init__(self, frame):
        self.data = frame

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        row = self.data.iloc[index]
        return int(row["user"]), int(row["item"]), float(row["rating"])


class Net(nn.Module):
    def __init__(self, users, items):
        super().__init__()
        self.u = nn.Embedding(users, 16)
        self.i = nn.Embedding(items, 16)
        self.mlp = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, i):
        return self.mlp(torch.cat([self.u(u), self.i(i)], 1)).squeeze(1)


def main():
    rng = np.random.default_rng(1)
    n = 100_000
    frame = pd.DataFrame(
        {
            "user": rng.integers(0, 1000, n),
            "item": rng.integers(0, 2000, n),
            "rating": rng.random(n),
        }
    )
    train = DataLoader(RatingsDataset(frame), batch_size=512, shuffle=True)
    net = Net(1000, 2000)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(2):
        for users, items, ratings in train:
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(users, items), ratings.float())
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
