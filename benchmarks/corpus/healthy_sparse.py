import torch
from torch import nn

torch.manual_seed(0)
users, items = nn.Embedding(200_000, 32, sparse=True), nn.Embedding(100_000, 32, sparse=True)
tower = nn.Sequential(
    nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
)
tables = torch.optim.SparseAdam([*users.parameters(), *items.parameters()])
dense = torch.optim.Adam(tower.parameters())
for step in range(300):
    u, i = torch.randint(0, 200_000, (1024,)), torch.randint(0, 100_000, (1024,))
    score = tower(torch.cat([users(u), items(i)], 1)).squeeze(1)
    loss = nn.functional.softplus(-score).mean()
    tables.zero_grad()
    dense.zero_grad()
    loss.backward()
    tables.step()
    dense.step()
    if step % 100 == 0:
        print(step, loss.item())
