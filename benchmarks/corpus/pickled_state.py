import os
import pickle
import tempfile

import torch
from torch import nn


class Trainer:
    def __init__(self, model, opt, folder, save_every=2):
        self.model, self.opt, self.folder, self.save_every = model, opt, folder, save_every
        self.step = 0

    def save(self):
        state = {"step": self.step, "model": self.model.state_dict(), "opt": self.opt.state_dict()}
        path = os.path.join(self.folder, f"step{self.step % 40}.pkl")
        with open(path + ".tmp", "wb") as f:
            pickle.dump(state, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".tmp", path)

    def fit(self, x, y, steps):
        for _ in range(steps):
            b = torch.randint(0, len(x), (128,))
            loss = nn.functional.mse_loss(self.model(x[b]), y[b])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            if self.step % self.save_every == 0:
                self.save()
        return loss.item()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8))
trainer = Trainer(model, torch.optim.Adam(model.parameters()), tempfile.mkdtemp())
x, y = torch.randn(10_000, 128), torch.randn(10_000, 8)
print(trainer.fit(x, y, 400))
