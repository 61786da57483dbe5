import torch
from torch import nn

torch.manual_seed(0)


def auc(scores, labels):
    """Mann-Whitney by counting pairs."""
    pos = [s for s, l in zip(scores, labels) if l == 1]
    neg = [s for s, l in zip(scores, labels) if l == 0]
    wins = 0.0
    for p in pos:
        for n in neg:
            wins += 1.0 if p > n else 0.5 if p == n else 0.0
    return wins / max(1, len(pos) * len(neg))


class Meter:
    def __init__(self):
        self.values = []

    def update(self, out, y):
        self.values.append(auc(out.detach().cpu().tolist(), y.cpu().tolist()))

    @property
    def avg(self):
        return sum(self.values) / len(self.values)


x = torch.randn(100_000, 40)
y = (x[:, 0] + 0.5 * torch.randn(100_000) > 0).float()
model = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
meter = Meter()
for step in range(1100):
    index = torch.randint(0, len(x), (512,))
    out = model(x[index]).squeeze(-1)
    loss = nn.functional.binary_cross_entropy_with_logits(out, y[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meter.update(out, y[index])
    if step % 200 == 0:
        print(step, loss.item(), meter.avg)
