import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    def __init__(self, n=700_000):
        self.rows = [(str(k), k % 977, f"user{k % 4001}", float(k)) for k in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        ident, item, user, stamp = self.rows[k]
        return item, len(user), stamp


model = nn.Sequential(nn.Linear(3, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = DataLoader(Reviews(), batch_size=2048, shuffle=True, num_workers=2)
for epoch in range(2):
    for item, length, stamp in loader:
        x = torch.stack([item.float() / 977, length.float() / 10, (stamp / 7e5).float()], 1)
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
