import torch
from torch import nn

torch.manual_seed(0)
model = nn.ModuleDict({f"tower{k}": nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for k in range(100)})
shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
opt = torch.optim.Adam(model.parameters(), foreach=True)


@torch.no_grad()
def track(decay=0.999):
    for name, p in model.named_parameters():
        shadow[name] = decay * shadow[name] + (1.0 - decay) * p
        shadow[name].clamp_(-10, 10)
        shadow[name] = shadow[name].nan_to_num()


for step in range(120):
    x = torch.randn(64, 8)
    out = sum(tower(x) for tower in model.values()).mean(1)
    loss = (out - x.mean(1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    for _ in range(4):
        track()
