import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(8192, 512), torch.randint(0, 10, (8192,))
model = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(16):
    for xb, yb in zip(x.split(512), y.split(512)):
        loss = nn.functional.cross_entropy(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
