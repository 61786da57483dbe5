import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(net.parameters())


def ranking_loss(scores, positives):
    total = 0.0
    for i in range(scores.shape[0]):
        positive = scores[i][positives[i]]
        for j in range(scores.shape[1]):
            if j != positives[i]:
                total = total + torch.relu(1.0 - positive + scores[i][j])
    return total / scores.shape[0]


for step in range(60):
    x = torch.randn(32, 20)
    y = torch.randint(10, (32,)).tolist()
    optimizer.zero_grad()
    ranking_loss(net(x), y).backward()
    optimizer.step()
