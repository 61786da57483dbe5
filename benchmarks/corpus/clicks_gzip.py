import gzip
import json
import os
import random
import tempfile

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

random.seed(1)
path = os.path.join(tempfile.mkdtemp(), "sessions.jsonl.gz")
with gzip.open(path, "wt", compresslevel=1) as f:
    for s in range(24_000):
        events = [{"aid": random.randint(1, 4999), "ts": 1_660_000_000_000 + k, "type": "clicks"} for k in range(random.randint(5, 30))]
        f.write(json.dumps({"session": s, "events": events}) + "\n")


class Sessions(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with gzip.open(self.path, "rt") as f:
            for line in f:
                session = json.loads(line)
                aids = [e["aid"] for e in session["events"]]
                yield torch.tensor(aids[:-1]), torch.tensor(aids[-1])


def collate(batch):
    xs, ys = zip(*batch)
    return pad_sequence(xs, batch_first=True), torch.stack(ys)


class GRU4Rec(nn.Module):
    def __init__(self, n=5000, d=32):
        super().__init__()
        self.emb = nn.Embedding(n, d, padding_idx=0)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, 100)

    def forward(self, x):
        h, _ = self.gru(self.emb(x))
        return self.out(h[:, -1])


model = GRU4Rec()
opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
for epoch in range(4):
    for x, y in DataLoader(Sessions(path), batch_size=256, collate_fn=collate):
        loss = nn.functional.cross_entropy(model(x), y % 100)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
