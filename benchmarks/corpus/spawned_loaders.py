import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Readings(Dataset):
    def __init__(self, rows, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(rows, 64, generator=g)
        self.y = (self.x[:, :8].sum(1) > 0).float()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        return self.x[k], self.y[k]


class Trainer:
    def __init__(self, model, epochs):
        self.model = model
        self.epochs = epochs
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.criterion = nn.BCEWithLogitsLoss()
        self.train_set = Readings(4_000, 0)
        self.test_set = Readings(1_000, 1)

    def loader(self):
        return DataLoader(
            self.train_set, batch_size=100, shuffle=True, num_workers=2,
            multiprocessing_context="spawn",
        )

    def train_epoch(self):
        self.model.train()
        for x, y in self.loader():
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x).squeeze(1), y)
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def test(self):
        self.model.eval()
        return ((self.model(self.test_set.x).squeeze(1) > 0) == self.test_set.y).float().mean()

    def fit(self):
        for epoch in range(self.epochs):
            loss = self.train_epoch()
            print(f"[{epoch}] loss {loss:.4f} accuracy {self.test():.3f}", flush=True)


if __name__ == "__main__":
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    Trainer(net, epochs=6).fit()
