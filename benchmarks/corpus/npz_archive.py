import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

folder = tempfile.mkdtemp()
rng = np.random.default_rng(0)
for shard in range(20):
    np.savez_compressed(
        os.path.join(folder, f"part-{shard:02d}.npz"),
        dense=rng.normal(size=(200, 64)).astype("float32"),
        label=rng.integers(0, 2, 200),
    )


class Shards(Dataset):
    def __init__(self, folder):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder))
        self.archives = [np.load(f) for f in self.files]

    def __len__(self):
        return 200 * len(self.files)

    def __getitem__(self, k):
        archive = self.archives[k // 200]
        x = archive["dense"][k % 200]
        y = archive["label"][k % 200]
        return torch.from_numpy(x), torch.tensor(float(y))


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
opt = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    for x, y in DataLoader(Shards(folder), batch_size=64, shuffle=True):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(-1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
