import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
train = DataLoader(TensorDataset(torch.randn(30_000, 100), torch.randint(8, (30_000,))), batch_size=500, shuffle=True)
valid = DataLoader(TensorDataset(torch.randn(5000, 100), torch.randint(8, (5000,))), batch_size=500)
model = nn.Sequential(nn.Linear(100, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 8))
opt = torch.optim.Adam(model.parameters(), foreach=True)
for epoch in range(3):
    for x, y in train:
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in valid)
    print(epoch, right / 5000)
