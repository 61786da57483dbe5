import torch
from torch import nn


def batches(examples, size):
    batch = []
    for text, label in examples:
        features = [0.0] * 64
        for ch in text:
            features[ord(ch) % 64] += 1.0
        batch.append((features, label))
        if len(batch) == size:
            yield torch.tensor([f for f, _ in batch]), torch.tensor([l for _, l in batch])
            batch = []


data = [
    ("some text that is number %d of many others of its kind" % (k * k), float(k % 2))
    for k in range(30_000)
]
model = nn.Linear(64, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(20):
    for x, y in batches(data, 256):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
