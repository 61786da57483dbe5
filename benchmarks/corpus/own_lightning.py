"""A small trainer in Lightning's manner: modules with training_step, callbacks, a fit loop."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Callback:
    def on_batch_end(self, trainer, loss): ...
    def on_epoch_end(self, trainer): ...


class Progress(Callback):
    def on_epoch_end(self, trainer):
        print("epoch", trainer.epoch, "loss", float(trainer.last))


class NeuMF(nn.Module):
    def __init__(self, users, items, d=32):
        super().__init__()
        self.mf_u, self.mf_i = nn.Embedding(users, d), nn.Embedding(items, d)
        self.mlp_u, self.mlp_i = nn.Embedding(users, d), nn.Embedding(items, d)
        self.mlp = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU())
        self.out = nn.Linear(2 * d, 1)

    def forward(self, u, i):
        gmf = self.mf_u(u) * self.mf_i(i)
        mlp = self.mlp(torch.cat([self.mlp_u(u), self.mlp_i(i)], -1))
        return self.out(torch.cat([gmf, mlp], -1)).squeeze(-1)

    def training_step(self, batch):
        u, i, y = batch
        return nn.functional.binary_cross_entropy_with_logits(self(u, i), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, weight_decay=1e-6)


class Trainer:
    def __init__(self, max_epochs, callbacks):
        self.max_epochs, self.callbacks = max_epochs, callbacks

    def fit(self, module, loader):
        optimizer = module.configure_optimizers()
        for self.epoch in range(self.max_epochs):
            for batch in loader:
                self.run_step(module, optimizer, batch)
            for cb in self.callbacks:
                cb.on_epoch_end(self)

    def run_step(self, module, optimizer, batch):
        def closure():
            optimizer.zero_grad()
            self.last = module.training_step(batch)
            self.last.backward()
            return self.last

        optimizer.step(closure)
        for cb in self.callbacks:
            cb.on_batch_end(self, self.last)


torch.manual_seed(0)
n = 25_600
data = TensorDataset(torch.randint(0, 60_000, (n,)), torch.randint(0, 20_000, (n,)), torch.rand(n).round())
Trainer(2, [Progress()]).fit(NeuMF(60_000, 20_000), DataLoader(data, batch_size=512, shuffle=True))
