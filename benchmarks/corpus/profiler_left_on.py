import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

torch.manual_seed(0)
net = nn.Sequential(*[nn.Sequential(nn.Linear(24, 24), nn.ReLU()) for _ in range(30)], nn.Linear(24, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e-3)


def train(steps):
    for _ in range(steps):
        x = torch.randn(64, 24)
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()


with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True) as prof:
    train(450)
print(prof.key_averages().table(row_limit=5))
