import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 256, 2, batch_first=True)
        self.out = nn.Linear(256, 1)

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.out(states[:, -1])


series = torch.randn(2000, 50, 16)
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for x in series.split(128):
        loss = nn.functional.mse_loss(model(x), x[:, -1, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", loss.item())
