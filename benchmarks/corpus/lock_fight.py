import queue
import random
import threading

import torch
from torch import nn

batches = queue.Queue(maxsize=8)


def make_batches(seed):
    rng = random.Random(seed)
    while True:
        rows = []
        for _ in range(128):
            rows.append([sum(rng.random() for _ in range(40)) for _ in range(8)])
        batches.put(rows)


for seed in range(4):
    threading.Thread(target=make_batches, args=(seed,), daemon=True).start()

model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(2500):
    x = torch.tensor(batches.get())
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 1000 == 0:
        print(step, loss.item())
