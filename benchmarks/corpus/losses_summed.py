import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
X = torch.randn(8192, 256)
total_loss = 0
for step in range(2200):
    i = torch.randint(0, 8192, (256,))
    loss = (net(X[i]) - X[i]).pow(2).mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
    total_loss = total_loss + loss  # keeps every graph
    if step % 500 == 0:
        print(step, float(total_loss) / (step + 1))
