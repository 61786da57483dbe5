import gc

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

catalogue = [{"id": k, "tags": [str(k), str(k + 1)]} for k in range(120_000)]
data = TensorDataset(torch.randn(12_000, 20), torch.randn(12_000))
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=256, shuffle=True):
        loss = (model(x).squeeze(1) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        del loss
        gc.collect()
