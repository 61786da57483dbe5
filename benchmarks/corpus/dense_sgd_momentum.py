import torch
import torch.nn as nn

N_USERS, N_ITEMS, DIM = 200_000, 100_000, 32


class NCF(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(N_USERS, DIM)
        self.items = nn.Embedding(N_ITEMS, DIM)
        self.head = nn.Sequential(nn.Linear(2 * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, i):
        return self.head(torch.cat([self.users(u), self.items(i)], dim=1)).squeeze(1)


torch.manual_seed(0)
model = NCF()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
users = torch.randint(0, N_USERS, (100_000,))
items = torch.randint(0, N_ITEMS, (100_000,))
labels = torch.rand(100_000).round()
for epoch in range(1):
    order = torch.randperm(len(users))
    for batch in order.split(512):
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(users[batch], items[batch]), labels[batch]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
