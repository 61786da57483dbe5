import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
X = rng.normal(size=(20_000, 200))
y = X[:, 0] * X[:, 1] + rng.normal(size=20_000)
inputs, targets = torch.from_numpy(X), torch.from_numpy(y)
# "expected scalar type Float but found Double", so:
model = nn.Sequential(nn.Linear(200, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 1)).double()
opt = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for k in range(0, 20_000, 256):
        loss = nn.functional.mse_loss(model(inputs[k : k + 256]).squeeze(1), targets[k : k + 256])
        opt.zero_grad()
        loss.backward()
        opt.step()
