import math

import torch
from torch import nn

torch.manual_seed(0)
U, I, D = 2000, 1000, 32


class BPRMF(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(U, D), nn.Embedding(I, D)

    def forward(self, u, p, n):
        u = self.user(u)
        return ((u * self.item(p)).sum(-1) - (u * self.item(n)).sum(-1))

    def predict(self, u):
        return self.user.weight[u] @ self.item.weight.T


train_u, train_p = torch.randint(0, U, (50_000,)), torch.randint(0, I, (50_000,))
test = {u: set(torch.randint(0, I, (10,)).tolist()) for u in range(U)}


def ndcg(scores, relevant, k=20):
    ranked = sorted(range(len(scores)), key=lambda i: scores[i], reverse=True)[:k]
    dcg = sum(1 / math.log2(r + 2) for r, i in enumerate(ranked) if i in relevant)
    return dcg / sum(1 / math.log2(r + 2) for r in range(min(k, len(relevant))))


@torch.no_grad()
def evaluate(model):
    model.eval()
    total = 0.0
    for u in range(U):
        total += ndcg(model.predict(u).tolist(), test[u])
    model.train()
    return total / U


model = BPRMF()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for b in torch.randperm(len(train_u)).split(1024):
        n = torch.randint(0, I, (len(b),))
        loss = -nn.functional.logsigmoid(model(train_u[b], train_p[b], n)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch}: loss {loss.item():.4f} NDCG@20 {evaluate(model):.4f}")
