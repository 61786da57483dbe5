import random
from collections import defaultdict
import torch
from torch.utils.data import DataLoader

U, I = 2000, 3000
rows = [(random.randrange(U), random.randrange(I)) for _ in range(120_000)]
seen = defaultdict(set)
for u, i in rows:
    seen[u].add(i)

def collate(batch, negatives=4):
    us, its, ys = [], [], []
    for u, i in batch:
        us.append(u); its.append(i); ys.append(1.0)
        for _ in range(negatives):
            j = random.randint(0, I - 1)
            while j in seen[u]:
                j = random.randint(0, I - 1)
            us.append(u); its.append(j); ys.append(0.0)
    return torch.tensor(us), torch.tensor(its), torch.tensor(ys)

class GMF(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.i = torch.nn.Embedding(U, 8), torch.nn.Embedding(I, 8)
        self.out = torch.nn.Linear(8, 1)
    def forward(self, u, i):
        return self.out(self.u(u) * self.i(i)).squeeze(-1)

if __name__ == "__main__":
    model = GMF()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(9):
        total = 0.0
        for u, i, y in DataLoader(rows, 512, shuffle=True, collate_fn=collate):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(u, i), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(epoch, total)
