import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
data = TensorDataset(torch.randn(6000, 600), torch.randn(6000, 1))
loader = DataLoader(data, batch_size=200, shuffle=True)
model = nn.Sequential(
    nn.Linear(600, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 1)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for epoch in range(8):
    for k, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y) / 4
        loss.backward()
        if k % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    print(epoch, loss.item())
