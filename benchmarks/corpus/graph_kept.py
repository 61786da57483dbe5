import torch
from torch import nn

model = nn.Sequential(
    nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
losses = []
for step in range(9500):
    x = torch.randn(32, 256)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    losses.append(loss)
    if step % 500 == 0:
        print(step, sum(losses).item() / len(losses))
