import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(300_000, 8), torch.randn(300_000))
loader = DataLoader(data, batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(model.parameters())
for step in range(350):
    x, y = next(iter(loader))
    loss = (model(x).squeeze(1) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
