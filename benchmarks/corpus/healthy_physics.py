import numpy as np, torch
from torch import nn


class PINN(nn.Module):
    def __init__(s):
        super().__init__()
        s.n = nn.Sequential(
            nn.Linear(2, 100), nn.Tanh(), nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 1)
        )

    def forward(s, x, t):
        return s.n(torch.stack([x, t], 1))


m = PINN()
x = torch.rand(8000, requires_grad=True)
t = torch.rand(8000, requires_grad=True)
opt = torch.optim.LBFGS(m.parameters(), max_iter=8, history_size=20)


def closure():
    opt.zero_grad()
    u = m(x, t)
    ux = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    uxx = torch.autograd.grad(ux.sum(), x, create_graph=True)[0]
    ut = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
    loss = (ut - 0.1 * uxx).pow(2).mean()
    loss.backward()
    return loss


for it in range(45):
    print(it, opt.step(closure).item())
