import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def read_remote(path):
    time.sleep(0.004)  # what a loaded file server takes to open a file
    return np.load(path)


class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        sample = read_remote(self.paths[i])
        return torch.from_numpy(sample[:-1]), torch.tensor(sample[-1])


with tempfile.TemporaryDirectory() as folder:
    rng = np.random.default_rng(0)
    for k in range(1000):
        np.save(f"{folder}/{k:05}.npy", rng.random(65, dtype=np.float32))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Files(folder), batch_size=50, shuffle=True)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x).squeeze(1) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
