"""SASRec-like, healthy: data in tensors, Adam, evaluation rarely."""

import torch
from torch import nn


class SASRec(nn.Module):
    def __init__(self, n=3000, d=64, L=50):
        super().__init__()
        self.item = nn.Embedding(n, d)
        self.pos = nn.Embedding(L, d)
        layer = nn.TransformerEncoderLayer(d, 2, 128, batch_first=True, dropout=0.1)
        self.enc = nn.TransformerEncoder(layer, 2)
        self.register_buffer("mask", torch.triu(torch.full((L, L), float("-inf")), 1))

    def forward(self, x):
        h = self.item(x) + self.pos.weight
        return self.enc(h, mask=self.mask)


m = SASRec()
opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
S = torch.randint(0, 3000, (4000, 51))
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(S), batch_size=128, shuffle=True)
for ep in range(2):
    m.train()
    for (s,) in dl:
        h = m(s[:, :-1])
        neg = torch.randint(0, 3000, s[:, 1:].shape)
        p = (h * m.item(s[:, 1:])).sum(-1)
        n = (h * m.item(neg)).sum(-1)
        loss = -(nn.functional.logsigmoid(p) + nn.functional.logsigmoid(-n)).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    m.eval()
    with torch.inference_mode():
        hit = 0
        for u in range(0, 256, 128):
            hit += (
                (m(S[u : u + 128, :-1])[:, -1] @ m.item.weight.T)
                .topk(10)
                .indices.eq(S[u : u + 128, -1:])
                .any(1)
                .sum()
                .item()
            )
    print(ep, loss.item(), hit)
