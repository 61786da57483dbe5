import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n):
        self.u = torch.randint(0, 1000, (n,))
        self.i = torch.randint(0, 1000, (n,))
        self.y = torch.rand(n)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, k):
        return self.u[k], self.i[k], self.y[k]


def run():
    torch.manual_seed(0)
    emb = nn.Embedding(2000, 16)
    opt = torch.optim.SGD(emb.parameters(), lr=0.1)
    loader = DataLoader(Pairs(16_000), batch_size=4, num_workers=8, persistent_workers=True)
    for epoch in range(1):
        for u, i, y in loader:
            opt.zero_grad()
            loss = ((emb(u) * emb(i + 1000)).sum(1) - y).square().mean()
            loss.backward()
            opt.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    run()
