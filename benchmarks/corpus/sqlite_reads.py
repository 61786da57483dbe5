import sqlite3
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Clicks(Dataset):
    def __init__(self, path, n):
        self.db = sqlite3.connect(path)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        query = "SELECT user, item, label FROM clicks WHERE item % 97 = ? LIMIT 1 OFFSET ?"
        user, item, label = self.db.execute(query, (i % 97, i // 97 % 90)).fetchone()
        return user, item, label


class FM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.v = torch.nn.Embedding(3000, 8)
        self.w = torch.nn.Embedding(3000, 1)

    def forward(self, u, i):
        i = i + 1000
        return (self.w(u) + self.w(i)).squeeze(1) + (self.v(u) * self.v(i)).sum(1)


file = tempfile.NamedTemporaryFile(suffix=".db")
db = sqlite3.connect(file.name)
db.execute("CREATE TABLE clicks (user INT, item INT, label REAL)")
rng = np.random.default_rng(0)
rows = [
    (int(u), int(i), float(r))
    for u, i, r in zip(
        rng.integers(0, 1000, 20000), rng.integers(0, 2000, 20000), rng.random(20000)
    )
]
db.executemany("INSERT INTO clicks VALUES (?, ?, ?)", rows)
db.commit()

model = FM()
opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
for epoch in range(2):
    for u, i, y in DataLoader(Clicks(file.name, 20000), batch_size=256):
        loss = F.binary_cross_entropy_with_logits(model(u, i), y.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, "loss", loss.item())
