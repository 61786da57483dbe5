import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(20_000, 3, 24, 24), torch.randint(10, (20_000,)))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c))

    def forward(self, x):
        return torch.relu(x + self.body(x))


model = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), *[Block(24) for _ in range(5)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step, (x, y) in enumerate(DataLoader(data, batch_size=128, shuffle=True)):
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
    if step == 25:
        break
