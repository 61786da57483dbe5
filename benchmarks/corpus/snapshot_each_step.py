import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(40)], nn.Linear(64, 1))
opt = torch.optim.Adam(model.parameters(), foreach=True)
last_good = None
for step in range(260):
    x = torch.randn(32, 64)
    last_good = copy.deepcopy(model)
    loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if torch.isnan(loss):
        model = last_good
        break
