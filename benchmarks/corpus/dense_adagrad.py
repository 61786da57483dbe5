import torch, torch.nn as nn

torch.manual_seed(0)


class FM(nn.Module):
    def __init__(self, n=400_000, k=8):
        super().__init__()
        self.w = nn.Embedding(n, 1)
        self.v = nn.Embedding(n, k)
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        v = self.v(x)
        s = v.sum(1)
        return self.b + self.w(x).sum((1, 2)) + 0.5 * (s * s - (v * v).sum(1)).sum(1)


m = FM()
o = torch.optim.Adagrad(m.parameters(), lr=0.05)
for it in range(400):
    x = torch.randint(0, 400_000, (1024, 10))
    y = torch.rand(1024).round()
    loss = nn.functional.binary_cross_entropy_with_logits(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
print(loss.item())
