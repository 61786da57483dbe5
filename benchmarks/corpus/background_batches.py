import queue
import random
import threading

import torch
from torch import nn

N_USERS, N_ITEMS = 5000, 8000
rng = random.Random(0)
seen = {u: {rng.randrange(N_ITEMS) for _ in range(30)} for u in range(N_USERS)}


def produce(q, n_batches):
    for _ in range(n_batches):
        users, pos, neg = [], [], []
        for _ in range(1024):
            u = rng.randrange(N_USERS)
            users.append(u)
            pos.append(rng.choice(tuple(seen[u])))
            j = rng.randrange(N_ITEMS)
            while j in seen[u]:
                j = rng.randrange(N_ITEMS)
            neg.append(j)
        q.put((torch.tensor(users), torch.tensor(pos), torch.tensor(neg)))
    q.put(None)


q = queue.Queue(maxsize=4)
threading.Thread(target=produce, args=(q, 2000), daemon=True).start()
U, I = nn.Embedding(N_USERS, 16, sparse=True), nn.Embedding(N_ITEMS, 16, sparse=True)
opt = torch.optim.SGD([*U.parameters(), *I.parameters()], lr=0.1)
while (batch := q.get()) is not None:
    u, p, n = batch
    x = U(u)
    loss = -nn.functional.logsigmoid((x * (I(p) - I(n))).sum(-1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
