import torch
from torch import nn

torch.manual_seed(0)
experts = nn.ModuleList(nn.Linear(10, 4) for _ in range(150))
final = nn.Linear(4, 1)
opt = torch.optim.Adam([*experts.parameters(), *final.parameters()], foreach=True)


def regularisation():
    reg = torch.zeros(())
    for expert in experts:
        for w in expert.parameters():
            reg = reg + w.pow(2).sum() + 0.1 * w.abs().sum()
    return reg


for step in range(200):
    x, y = torch.randn(64, 10), torch.randn(64)
    hidden = experts[step % 150](x).relu()
    error = (final(hidden).squeeze(1) - y).square().mean()
    opt.zero_grad()
    (error + 1e-4 * regularisation()).backward()
    opt.step()
