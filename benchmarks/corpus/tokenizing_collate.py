import random
import re

import torch
from torch import nn
from torch.utils.data import DataLoader

random.seed(3)
WORDS = ["w%d" % k for k in range(5000)]
VOCAB = {w: k + 1 for k, w in enumerate(WORDS)}
reviews = [(" ".join(random.choices(WORDS, k=120)), random.randint(0, 1)) for _ in range(20000)]


def tokenize(text):
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [VOCAB.get(word, 0) for word in words]


def collate(batch):
    texts, labels = zip(*batch)
    ids = [torch.tensor(tokenize(text)) for text in texts]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor(labels).float()


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(len(VOCAB) + 1, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, ids):
        return self.out(self.emb(ids)).squeeze(1)


model = Bag()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(reviews, 128, shuffle=True, collate_fn=collate)
for epoch in range(6):
    for ids, labels in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
