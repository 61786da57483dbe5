import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.EmbeddingBag(60_000, 64, sparse=True), nn.Linear(64, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
best, best_loss, patience = None, float("inf"), 0
for step in range(1500):
    x, y = torch.randint(0, 60_000, (64, 10)), torch.rand(64, 1)
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    smoothed = loss.item() if step == 0 else 0.99 * smoothed + 0.01 * loss.item()
    if smoothed < best_loss:
        best, best_loss = copy.deepcopy(model.state_dict()), smoothed
print(best_loss)
