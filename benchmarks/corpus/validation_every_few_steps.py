import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 100, generator=g)
    return TensorDataset(x, (x[:, 0] > 0).long())


train = DataLoader(make(20_000, 0), batch_size=100, shuffle=True)
val = DataLoader(make(20_000, 1), batch_size=500)
model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 2))
opt = torch.optim.Adam(model.parameters())
step = 0
for epoch in range(2):
    for x, y in train:
        model.train()
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        step += 1
        if step % 5 == 0:
            model.eval()
            right = 0
            for xv, yv in val:
                with torch.no_grad():
                    right += (model(xv).argmax(1) == yv).sum().item()
            if step % 50 == 0:
                print(step, right / 20_000)
