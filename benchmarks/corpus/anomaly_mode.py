import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)  # found the NaN, left it in
torch.manual_seed(0)
net = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.SiLU()) for _ in range(20)], nn.Linear(32, 1))
opt = torch.optim.AdamW(net.parameters())
for step in range(350):
    x = torch.randn(64, 32)
    loss = (net(x).squeeze(1) - x.sum(1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
