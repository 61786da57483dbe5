# a boundary value problem: single precision is not enough
import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
u = nn.Sequential(nn.Linear(1, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
opt = torch.optim.Adam(u.parameters(), lr=1e-3)
for step in range(80):
    x = torch.rand(2048, 1, requires_grad=True)
    y = u(x)
    dy = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    ddy = torch.autograd.grad(dy.sum(), x, create_graph=True)[0]
    loss = (ddy + torch.pi**2 * torch.sin(torch.pi * x)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
