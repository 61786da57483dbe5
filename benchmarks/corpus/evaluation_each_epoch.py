import torch
from torch import nn

torch.manual_seed(0)
N_USERS, N_ITEMS, D = 3000, 4000, 32
users = torch.randint(0, N_USERS, (40_000,))
items = torch.randint(0, N_ITEMS, (40_000,))


class BPR(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.i = nn.Embedding(N_USERS, D), nn.Embedding(N_ITEMS, D)

    def forward(self, u, i):
        return (self.u(u) * self.i(i)).sum(-1)


@torch.no_grad()
def recall_at_10(model):
    hits = 0
    for u in range(N_USERS):
        scores = model.i.weight @ model.u.weight[u]
        top = set(scores.topk(10).indices.tolist())
        hits += bool(top & set(items[users == u].tolist()))
    return hits / N_USERS


model = BPR()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(12):
    for batch in torch.randperm(len(users)).split(512):
        u, pos = users[batch], items[batch]
        neg = torch.randint(0, N_ITEMS, pos.shape)
        loss = -nn.functional.logsigmoid(model(u, pos) - model(u, neg)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), recall_at_10(model))
