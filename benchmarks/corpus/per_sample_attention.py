import math

import torch
import torch.nn as nn


class HistoryAttention(nn.Module):
    """Attention over each user's history; histories differ in length, so one at a time."""

    def __init__(self, items=3000, d=16):
        super().__init__()
        self.item = nn.Embedding(items, d)
        self.q = nn.Linear(d, d)
        self.k = nn.Linear(d, d)
        self.d = d

    def forward(self, histories, targets):
        scores = []
        for history, target in zip(histories, targets):
            h = self.item(history)
            t = self.item(target)
            a = torch.softmax(self.k(h) @ self.q(t) / math.sqrt(self.d), dim=0)
            scores.append((a.unsqueeze(1) * h).sum(0) @ t)
        return torch.stack(scores)


model = HistoryAttention()
optim = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(90):
    lengths = torch.randint(3, 30, (128,)).tolist()
    histories = [torch.randint(3000, (n,)) for n in lengths]
    targets = torch.randint(3000, (128,))
    labels = torch.randint(2, (128,)).float()
    logits = model(histories, targets)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
    optim.zero_grad()
    loss.backward()
    optim.step()
