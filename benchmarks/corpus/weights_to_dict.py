import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(20, 20), nn.LayerNorm(20), nn.Tanh()) for _ in range(70)], nn.Linear(20, 1))
opt = torch.optim.Adam(model.parameters(), foreach=True)
trajectory = []
for step in range(250):
    x = torch.randn(32, 20)
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    for key in ("begin", "middle", "end"):
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    trajectory = [*trajectory[-3:], weights]
