import torch
import torch.nn as nn
import torch.nn.functional as F


class MultVAE(nn.Module):
    def __init__(self, n_items):
        super().__init__()
        self.enc = nn.Linear(n_items, 600)
        self.mid = nn.Linear(600, 2 * 200)
        self.dec = nn.Sequential(nn.Linear(200, 600), nn.Tanh(), nn.Linear(600, n_items))

    def forward(self, x):
        h = torch.tanh(self.enc(F.normalize(x)))
        mu, logvar = self.mid(h).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return self.dec(z), kl


torch.manual_seed(0)
data = (torch.rand(4000, 2000) < 0.01).float()
model = MultVAE(2000)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(16):
    for rows in torch.randperm(len(data)).split(500):
        x = data[rows]
        logits, kl = model(x)
        loss = -(F.log_softmax(logits, 1) * x).sum(1).mean() + 0.2 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
