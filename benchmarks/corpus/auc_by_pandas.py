import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(60_000, 12), torch.randint(2, (60_000,)).float())
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters())
for x, y in DataLoader(data, batch_size=128, shuffle=True):
    score = net(x).squeeze(1)
    loss = nn.functional.binary_cross_entropy_with_logits(score, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    report = pd.DataFrame({"score": score.detach().numpy(), "label": y.numpy()}).describe()
