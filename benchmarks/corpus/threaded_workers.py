import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def init(worker):
    torch.set_num_threads(4)


class Spectra(Dataset):
    def __len__(self):
        return 3000

    def __getitem__(self, k):
        g = torch.Generator().manual_seed(k)
        signal = torch.randn(160, 160, generator=g)
        for _ in range(6):
            signal = torch.tanh(signal @ signal / 160)
        return signal.mean(0), signal.std()


model = nn.Sequential(nn.Linear(160, 512), nn.ReLU(), nn.Linear(512, 1))
opt = torch.optim.Adam(model.parameters())
loader = DataLoader(Spectra(), batch_size=16, num_workers=4, worker_init_fn=init, persistent_workers=True)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
