import os
import tempfile

import torch
from torch import nn

folder = tempfile.mkdtemp()
model = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
)
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(128, 512), torch.randint(0, 10, (128,))
for step in range(500):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, os.path.join(folder, "last.pt"))
print(loss.item())
