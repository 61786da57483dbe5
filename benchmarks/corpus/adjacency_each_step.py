import torch
from torch import nn

torch.manual_seed(0)
N = 1500
A = (torch.rand(N, N) < 0.01).float()
features = torch.randn(N, 32)
labels = torch.randint(4, (N,))
W1, W2 = nn.Linear(32, 32), nn.Linear(32, 4)
opt = torch.optim.Adam([*W1.parameters(), *W2.parameters()])


def normalise(adjacency):
    with_self = adjacency + torch.eye(len(adjacency))
    degree = with_self.sum(1)
    d = torch.diag(degree.pow(-0.5))
    return d @ with_self @ d


for step in range(60):
    a = normalise(A)
    h = torch.relu(a @ W1(features))
    logits = a @ W2(h)
    loss = nn.functional.cross_entropy(logits, labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
