import os
import tempfile

import torch
import torch.nn as nn

OUT = tempfile.mkdtemp()
model = nn.Sequential(
    nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
)
opt = torch.optim.AdamW(model.parameters())


def save_checkpoint(state, is_best, name="checkpoint.pth.tar"):
    path = os.path.join(OUT, name)
    torch.save(state, path)
    if is_best:
        torch.save(state, os.path.join(OUT, "model_best.pth.tar"))


best = 1e9
for it in range(80):
    x, y = torch.randn(64, 512), torch.randint(0, 10, (64,))
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 2 == 0:
        save_checkpoint(
            {"it": it, "model": model.state_dict(), "opt": opt.state_dict()}, loss.item() < best
        )
        best = min(best, loss.item())
        print(it, best)
