# BPR matrix factorisation, triples sampled in Python
import random, torch, torch.nn as nn, torch.nn.functional as F

N_USERS, N_ITEMS = 3000, 8000
interactions = {u: set(random.sample(range(N_ITEMS), 30)) for u in range(N_USERS)}


def sample_batch(batch_size):
    users, pos, neg = [], [], []
    for _ in range(batch_size):
        u = random.randrange(N_USERS)
        i = random.choice(list(interactions[u]))
        j = random.randrange(N_ITEMS)
        while j in interactions[u]:
            j = random.randrange(N_ITEMS)
        users.append(u)
        pos.append(i)
        neg.append(j)
    return torch.LongTensor(users), torch.LongTensor(pos), torch.LongTensor(neg)


class MF(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Embedding(N_USERS, 16)
        self.i = nn.Embedding(N_ITEMS, 16)

    def forward(self, u, i):
        return (self.u(u) * self.i(i)).sum(1)


model = MF()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(2000):
    u, i, j = sample_batch(2048)
    loss = -F.logsigmoid(model(u, i) - model(u, j)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, loss.item())
