import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
train = DataLoader(TensorDataset(torch.randn(4000, 64), torch.randint(5, (4000,))), batch_size=200, shuffle=True)
valid = DataLoader(TensorDataset(torch.randn(12_000, 64), torch.randint(5, (12_000,))), batch_size=200)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 5))
opt = torch.optim.Adam(model.parameters())
for epoch in range(14):
    model.train()
    for x, y in train:
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    model.eval()
    losses = []
    for x, y in valid:
        loss = nn.functional.cross_entropy(model(x), y)
        losses.append(loss)
    print(epoch, torch.stack(losses).mean().item())
