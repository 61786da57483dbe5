import re

import torch
from torch import nn

WORD = re.compile(r"\w+")


def load_reviews(n):
    reviews = []
    for k in range(n):
        text = " ".join(f"word{(k * 7 + j * 31) % 5000}" for j in range(60))
        words = [word.lower() for word in WORD.findall(text)]
        reviews.append(words)
    return reviews


def build_vocabulary(reviews):
    counts = {}
    for words in reviews:
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    return {word: k for k, word in enumerate(sorted(counts, key=counts.get))}


reviews = load_reviews(200_000)
vocabulary = build_vocabulary(reviews)
ids = torch.tensor([[vocabulary[word] for word in words] for words in reviews])
labels = (ids.sum(1) % 2).float()
model = nn.Sequential(nn.EmbeddingBag(len(vocabulary), 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1500):
    rows = torch.randint(0, len(ids), (1024,))
    loss = nn.functional.binary_cross_entropy_with_logits(model(ids[rows]).squeeze(1), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
