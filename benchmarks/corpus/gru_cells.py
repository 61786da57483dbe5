# Next-item prediction from sessions, with a GRU cell that is called once for each click
import torch
from torch import nn

torch.manual_seed(1)


class SessionModel(nn.Module):
    def __init__(self, n_items=500, dim=24):
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(n_items, dim)
        self.gru = nn.GRUCell(dim, dim)
        self.head = nn.Linear(dim, n_items)

    def forward(self, clicks):
        state = torch.zeros(clicks.size(0), self.dim)
        for position in range(clicks.size(1)):
            state = self.gru(self.embed(clicks[:, position]), state)
        return self.head(state)


model = SessionModel()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
for it in range(160):
    clicks = torch.randint(500, (16, 120))
    target = torch.randint(500, (16,))
    out = model(clicks)
    loss = criterion(out, target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 50 == 0:
        print(it, loss.item())
