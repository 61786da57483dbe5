import re

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TOKEN = re.compile(r"[a-z]+|\d+|[^\w\s]")


class Titles(Dataset):
    def __init__(self, n):
        self.titles = [f"The {k} best (and {k % 7} worst) films of {1950 + k % 70}, ranked!" * 6 for k in range(n)]

    def __len__(self):
        return len(self.titles)

    def __getitem__(self, k):
        tokens = TOKEN.findall(self.titles[k].lower())
        ids = [sum(map(ord, token)) % 4096 for token in tokens]
        return torch.tensor(ids[:60]), torch.tensor(float(k % 2))


model = nn.Sequential(nn.EmbeddingBag(4096, 32), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Titles(40_000), batch_size=128, shuffle=True, num_workers=1, persistent_workers=True)
for epoch in range(4):
    for ids, labels in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids).squeeze(1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
