"""A home-grown Trainer, callbacks and all."""

import abc, time, random
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Callback:
    def on_batch_end(self, trainer, loss): ...
    def on_epoch_end(self, trainer): ...


class History(Callback):
    def __init__(self):
        self.losses = []

    def on_batch_end(self, trainer, loss):
        self.losses.append(float(loss))


class Module(nn.Module, metaclass=abc.ABCMeta):
    @abc.abstractmethod
    def training_step(self, batch, idx): ...


class Trainer:
    def __init__(self, epochs, callbacks=()):
        self.epochs, self.callbacks = epochs, list(callbacks)

    def fit(self, module, loader):
        self.opt = module.configure_optimizers()
        for self.epoch in range(self.epochs):
            self._run_epoch(module, loader)
            for c in self.callbacks:
                c.on_epoch_end(self)

    def _run_epoch(self, module, loader):
        module.train()
        for idx, batch in enumerate(loader):

            def closure():
                self.opt.zero_grad()
                loss = module.training_step(batch, idx)
                loss.backward()
                self.last = loss
                return loss

            self.opt.step(closure)
            for c in self.callbacks:
                c.on_batch_end(self, self.last)


class Sessions(Dataset):
    """Item sequences, each padded and masked in Python."""

    def __init__(self, n=30000, items=5000, maxlen=50):
        self.s = [
            [random.randrange(1, items) for _ in range(random.randint(3, maxlen))] for _ in range(n)
        ]
        self.maxlen, self.items = maxlen, items

    def __len__(self):
        return len(self.s)

    def __getitem__(self, i):
        seq = self.s[i]
        masked, labels = [], []
        for it in seq:
            p = random.random()
            if p < 0.15:
                p /= 0.15
                if p < 0.8:
                    masked.append(self.items)
                elif p < 0.9:
                    masked.append(random.randrange(1, self.items))
                else:
                    masked.append(it)
                labels.append(it)
            else:
                masked.append(it)
                labels.append(0)
        pad = self.maxlen - len(seq)
        return torch.LongTensor([0] * pad + masked), torch.LongTensor([0] * pad + labels)


class Bert(Module):
    def __init__(self, items=5000, d=16):
        super().__init__()
        self.e = nn.Embedding(items + 1, d, padding_idx=0)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        return self.out(torch.tanh(self.e(x)).cumsum(1))

    def training_step(self, batch, idx):
        x, y = batch
        h = self(x)
        m = y > 0
        neg = torch.randint(1, 5000, (int(m.sum()),))
        pos = (h[m] * self.e(y[m])).sum(-1)
        ne = (h[m] * self.e(neg)).sum(-1)
        return -nn.functional.logsigmoid(pos - ne).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    random.seed(1)
    Trainer(5, [History()]).fit(
        Bert(), DataLoader(Sessions(), batch_size=128, shuffle=True, drop_last=True)
    )
