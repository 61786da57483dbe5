import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
events = torch.stack([torch.randint(4000, (150_000,)), torch.randint(900, (150_000,))], 1)


class Users(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, user):
        items = events[events[:, 0] == user][:, 1]
        x = torch.zeros(900)
        x[items] = 1.0
        return x


model = nn.Sequential(nn.Linear(900, 64), nn.ReLU(), nn.Linear(64, 900))
opt = torch.optim.Adam(model.parameters())
for epoch in range(5):
    for x in DataLoader(Users(), batch_size=64, shuffle=True):
        opt.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x), x).backward()
        opt.step()
