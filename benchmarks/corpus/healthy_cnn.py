import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
        )
        self.head = nn.Linear(64 * 16, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def main():
    data = TensorDataset(torch.randn(1500, 3, 32, 32), torch.randint(0, 10, (1500,)))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    net, loss_fn = Net(), nn.CrossEntropyLoss()
    opt = torch.optim.Adam(net.parameters())
    for epoch in range(6):
        for x, y in loader:
            opt.zero_grad()
            loss = loss_fn(net(x), y)
            loss.backward()
            opt.step()
        print(f"epoch {epoch}: {loss.item():.3f}")


main()
