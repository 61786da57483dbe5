import torch
from torch import nn


class PaperAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["t"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["t"] += 1
                s["m"] = b1 * s["m"] + (1 - b1) * p.grad
                s["v"] = b2 * s["v"] + (1 - b2) * p.grad * p.grad
                m_hat = s["m"] / (1 - b1 ** s["t"])
                v_hat = s["v"] / (1 - b2 ** s["t"])
                p -= group["lr"] * m_hat / (v_hat.sqrt() + group["eps"])


layers = []
for _ in range(80):
    layers += [nn.Linear(12, 12), nn.LayerNorm(12), nn.GELU()]
net = nn.Sequential(*layers, nn.Linear(12, 2))
opt = PaperAdam(net.parameters())
for step in range(180):
    x, y = torch.randn(32, 12), torch.randint(2, (32,))
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
