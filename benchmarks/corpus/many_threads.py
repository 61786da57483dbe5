import torch
from torch import nn

torch.set_num_threads(32)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(20_000, 256), torch.randn(20_000)
for epoch in range(12):
    for rows in torch.randperm(len(x)).split(512):
        loss = (model(x[rows]).squeeze(1) - y[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
