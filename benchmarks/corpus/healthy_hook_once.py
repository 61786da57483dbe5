import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(300, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 20))
activity = {}
model[2].register_forward_hook(lambda m, i, o: activity.__setitem__("mean", o.detach().mean()))
for p in model.parameters():
    p.register_hook(lambda g: g.clamp(-1, 1))
opt = torch.optim.AdamW(model.parameters(), foreach=True)
for step in range(110):
    x, y = torch.randn(512, 300), torch.randint(20, (512,))
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
