import torch
from torch import nn

torch.manual_seed(0)
gru = nn.GRU(64, 256, num_layers=2, batch_first=True)
head = nn.Linear(256, 400)
opt = torch.optim.Adam([*gru.parameters(), *head.parameters()])
for step in range(28):
    x, y = torch.randn(64, 60, 64), torch.randint(400, (64,))
    _, h = gru(x)
    loss = nn.functional.cross_entropy(head(h[-1]), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
