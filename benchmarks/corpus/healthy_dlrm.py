import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

torch.manual_seed(0)
N, FIELDS, CARD = 200_000, 12, 1000


class Clicks(Dataset):
    """Indexed by a whole batch."""

    def __init__(self):
        self.dense = torch.randn(N, 13)
        self.sparse = torch.randint(0, CARD, (N, FIELDS)) + torch.arange(FIELDS) * CARD
        self.y = torch.rand(N).round()

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.dense[index], self.sparse[index], self.y[index]


class DLRM(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.table = nn.Embedding(CARD * FIELDS, d)
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, d), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(d + 78, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))
        self.tri = torch.tril_indices(FIELDS + 1, FIELDS + 1, -1)

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        z = torch.cat([x.unsqueeze(1), self.table(sparse)], 1)
        inter = torch.bmm(z, z.transpose(1, 2))[:, self.tri[0], self.tri[1]]
        return self.top(torch.cat([x, inter], 1)).squeeze(1)


data, model = Clicks(), DLRM()
opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 2048, False), batch_size=None)
for epoch in range(3):
    for dense, sparse, y in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, sparse), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
print(loss.item())
