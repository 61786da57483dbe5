import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 32))
        self.decode = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 512))

    def forward(self, x):
        return self.decode(self.encode(x))


model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
predictions, targets = [], []
for step in range(4000):
    x = torch.rand(128, 512)
    out = model(x)
    loss = (out - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    predictions.append(out)
    targets.append(x)
    if step % 500 == 0:
        print(step, loss.item())
print((torch.cat(predictions) - torch.cat(targets)).abs().mean().item())
