import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(4096, 32)
y = (x.sum(1) > 0).float()
loader = DataLoader(TensorDataset(x, y), batch_size=512, shuffle=True, num_workers=2)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(120):
    for xb, yb in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(xb).squeeze(1), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 20 == 0:
        print(epoch, loss.item())
