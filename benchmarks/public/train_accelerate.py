"""The loop of accelerate's quick tour, over a model of embeddings."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
data = TensorDataset(torch.randint(0, 200_000, (400_000, 2)), torch.rand(400_000))
model = nn.Sequential(nn.Embedding(200_000, 32), nn.Flatten(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=512, shuffle=True)
)
for step, (pairs, ratings) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(pairs).squeeze(1), ratings)
    accelerator.backward(loss)
    optimizer.step()
    if step % 100 == 0:
        print(step, loss.item())
