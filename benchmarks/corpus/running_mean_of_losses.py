import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.Adam(model.parameters())
history, predictions, truths = [], [], []
for step in range(4000):
    x = torch.randn(64, 16)
    y = x[:, :3].sum(1)
    p = model(x).squeeze(1)
    loss = (p - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    predictions.extend(p.tolist())
    truths.extend(y.tolist())
    r = np.corrcoef(predictions, truths)[0, 1]
    history.append(r)
    if step % 100 == 0:
        print(step, r)
    if step == 420:
        break
