import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __len__(self):
        return 24_000

    def __getitem__(self, k):
        rng = random.Random(k)
        points = [(rng.random(), rng.random()) for _ in range(150)]
        angle = rng.random()
        turned = [x * math.cos(angle) - y * math.sin(angle) for x, y in points]
        return torch.tensor(turned), torch.tensor(angle)


model = nn.Sequential(nn.Linear(150, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Augmented(), batch_size=64, num_workers=1, persistent_workers=True)
for epoch in range(4):
    for points, angle in loader:
        loss = nn.functional.mse_loss(model(points).squeeze(1), angle)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
