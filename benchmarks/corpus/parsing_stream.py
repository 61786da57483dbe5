import json

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

LINES = [json.dumps({"features": [k % 17 / 17] * 30, "label": k % 2}) for k in range(40_000)]


class Stream(IterableDataset):
    def __iter__(self):
        for line in LINES:
            event = json.loads(line)
            features = torch.tensor(event["features"])
            yield features, event["label"]


model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(12):
    for x, y in DataLoader(Stream(), batch_size=256):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
