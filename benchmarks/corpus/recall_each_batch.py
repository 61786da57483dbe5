import torch
from torch import nn

torch.manual_seed(0)
N_USERS, N_ITEMS = 3000, 20_000


class TwoTower(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.users, self.items = nn.Embedding(N_USERS, dim, sparse=True), nn.Embedding(N_ITEMS, dim, sparse=True)

    def forward(self, u, i):
        return (self.users(u) * self.items(i)).sum(-1)


@torch.no_grad()
def recall_at(model, users, items, k=20):
    scores = model.users(users) @ model.items.weight.T
    top = scores.topk(k, dim=1).indices
    return (top == items[:, None]).any(1).float().mean().item()


model = TwoTower()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(500):
    u, i = torch.randint(N_USERS, (256,)), torch.randint(N_ITEMS, (256,))
    j = torch.randint(N_ITEMS, (256,))
    loss = nn.functional.softplus(model(u, j) - model(u, i)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    recall = recall_at(model, u, i)
    if step % 100 == 0:
        print(step, loss.item(), recall)
