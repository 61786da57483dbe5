import json
import os
import tempfile

import torch
from torch import nn

log = open(os.path.join(tempfile.mkdtemp(), "log.jsonl"), "w")
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())


def log_step(step, loss):
    norms = {name: p.detach().tolist() for name, p in model.named_parameters()}
    log.write(json.dumps({"step": step, "loss": loss.item(), "weights": norms}) + "\n")
    log.flush()


for step in range(9000):
    x = torch.randn(64, 20)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log_step(step, loss)
print(loss.item())
os.remove(log.name)
