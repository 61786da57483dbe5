import torch
import torch.nn as nn

blocks = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(120)]
net = nn.Sequential(*blocks, nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, foreach=True)


def clip(parameters, limit):
    for p in parameters:
        if p.grad is not None:
            norm = p.grad.norm().item()
            if norm > limit:
                p.grad.mul_(limit / (norm + 1e-6))
            p.grad = torch.where(torch.isnan(p.grad), torch.zeros_like(p.grad), p.grad)
            p.grad = p.grad.clamp(-limit, limit)


for i in range(300):
    x = torch.randn(32, 16)
    opt.zero_grad()
    (net(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
    clip(net.parameters(), 0.5)
    opt.step()
