import torch
from torch import nn

torch.manual_seed(0)
cell = nn.GRUCell(8, 16)
out = nn.Linear(16, 1)
opt = torch.optim.SGD([*cell.parameters(), *out.parameters()], lr=0.0)
hidden = torch.zeros(4, 16)
series = torch.randn(900, 4, 8)
for step, x in enumerate(series):
    hidden = cell(x, hidden)
    loss = out(hidden).square().mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step() if step % 1000 == 999 else None
