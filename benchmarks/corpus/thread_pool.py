from concurrent.futures import ThreadPoolExecutor
import math, random, torch
from torch import nn


def featurise(uid):
    r = random.Random(uid)
    out = []
    for k in range(64):
        s = 0.0
        for t in range(30):
            s += math.sin(r.random() * t) * math.exp(-t / 10)
        out.append(s)
    return out


net = nn.Linear(64, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
with ThreadPoolExecutor(max_workers=8) as pool:
    for step in range(160):
        feats = list(pool.map(featurise, range(step * 128, step * 128 + 128)))
        x = torch.tensor(feats)
        loss = (net(x) - 1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
