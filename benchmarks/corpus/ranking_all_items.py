import numpy as np, torch, torch.nn as nn

U, I = 2000, 4000
train = np.stack([np.random.randint(0, U, 60000), np.random.randint(0, I, 60000)], 1)
test = {u: np.random.randint(0, I) for u in range(U)}
seen = {}
for u, i in train:
    seen.setdefault(u, set()).add(i)


class NeuMF(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Embedding(U, 32)
        self.i = nn.Embedding(I, 32)
        self.mlp = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, i):
        return self.mlp(torch.cat([self.u(u), self.i(i)], 1)).squeeze(1)


def hit_rate(model, k=10):
    model.eval()
    hits = 0
    with torch.no_grad():
        for u, target in list(test.items())[:400]:
            cand = [i for i in range(I) if i not in seen.get(u, ())]
            s = model(torch.full((len(cand),), u), torch.tensor(cand))
            top = s.topk(k).indices.tolist()
            hits += target in [cand[t] for t in top]
    return hits / 400


model = NeuMF()
opt = torch.optim.Adam(model.parameters())
bce = nn.BCEWithLogitsLoss()
tr = torch.from_numpy(train)
for epoch in range(8):
    model.train()
    perm = torch.randperm(len(tr))
    for b in range(0, len(tr), 1024):
        idx = tr[perm[b : b + 1024]]
        neg = torch.randint(0, I, (len(idx),))
        u = torch.cat([idx[:, 0], idx[:, 0]])
        i = torch.cat([idx[:, 1], neg])
        y = torch.cat([torch.ones(len(idx)), torch.zeros(len(idx))])
        loss = bce(model(u, i), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("HR", hit_rate(model))
