import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
opt = torch.optim.Adam(model.parameters())
norms = {}


def watch(name):
    def hook(grad):
        norms[name] = grad.norm()
        return grad

    return hook


for step in range(900):
    for name, p in model.named_parameters():
        p.register_hook(watch(name))
    x, y = torch.randn(64, 32), torch.randint(4, (64,))
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
