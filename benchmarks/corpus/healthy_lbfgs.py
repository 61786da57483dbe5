import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(4000, 300)
y = torch.sin(x[:, :1]) + 0.1 * x[:, 1:2]
net = nn.Sequential(nn.Linear(300, 800), nn.Tanh(), nn.Linear(800, 1))
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=8, history_size=4)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    return loss


for i in range(18):
    print(i, optimizer.step(closure).item())
