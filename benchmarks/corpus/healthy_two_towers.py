import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.sampler import BatchSampler, RandomSampler


class Tower(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.ids = nn.Embedding(n, 64)
        self.mlp = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 256))

    def forward(self, ids):
        return nn.functional.normalize(self.mlp(self.ids(ids)), dim=1)


users, items = Tower(2000), Tower(3000)
optimizer = torch.optim.AdamW([*users.parameters(), *items.parameters()], lr=1e-3)
pairs = TensorDataset(torch.randint(0, 2000, (200_000,)), torch.randint(0, 3000, (200_000,)))
batches = BatchSampler(RandomSampler(pairs), batch_size=2048, drop_last=True)
loader = DataLoader(pairs, sampler=batches, batch_size=None)
for epoch in range(2):
    for u, i in loader:
        logits = users(u) @ items(i).T / 0.07
        loss = nn.functional.cross_entropy(logits, torch.arange(len(u)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
