"""An IterableDataset over a text log; parsing per line."""

import torch, tempfile, random, datetime
from torch.utils.data import IterableDataset, DataLoader

path = tempfile.mktemp()
with open(path, "w") as f:
    for k in range(60000):
        f.write(
            f"2024-03-{k % 28 + 1:02d} 12:{k % 60:02d}:00,{random.randrange(2000)},{random.randrange(5000)},{random.random():.4f}\n"
        )


class Log(IterableDataset):
    def __init__(self, path):
        self.path = path

    def parse(self, line):
        ts, u, i, r = line.rstrip().split(",")
        when = datetime.datetime.strptime(ts, "%Y-%m-%d %H:%M:%S")
        return int(u), int(i), when.hour / 24, when.weekday() / 7, float(r)

    def __iter__(self):
        with open(self.path) as f:
            for line in f:
                yield self.parse(line)


loader = DataLoader(Log(path), batch_size=512)
U, I = torch.nn.Embedding(2000, 16), torch.nn.Embedding(5000, 16)
opt = torch.optim.SGD([*U.parameters(), *I.parameters()], lr=0.1)
for ep in range(12):
    for u, i, h, w, r in loader:
        loss = ((U(u) * I(i)).sum(1) - r.float()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(ep, float(loss))
