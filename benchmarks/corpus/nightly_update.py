"""Nightly fine-tuning on yesterday's clicks."""
import random

import torch
from bucket_tables import N_BUCKETS, N_IDS, buckets


class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(N_BUCKETS, 16)
        self.score = torch.nn.Linear(32, 1)

    def forward(self, a, b):
        return self.score(torch.cat([self.table(a), self.table(b)], 1)).squeeze(1)


def yesterday(n):
    random.seed(4)
    return [(random.randrange(N_IDS), random.randrange(N_IDS), random.random() < 0.1) for _ in range(n)]


def main():
    clicks = yesterday(120_000)
    left = torch.tensor(buckets(a for a, _, _ in clicks))
    right = torch.tensor(buckets(b for _, b, _ in clicks))
    label = torch.tensor([float(c) for _, _, c in clicks])
    model = Tower()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    for rows in torch.randperm(len(label)).split(200):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(left[rows], right[rows]), label[rows]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


if __name__ == "__main__":
    main()
