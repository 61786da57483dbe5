import torch
from torch import nn

torch.manual_seed(0)
users, items, d, layers = 3000, 4000, 64, 3
n = users + items
u, i = torch.randint(0, users, (120_000,)), torch.randint(0, items, (120_000,)) + users
index = torch.cat([torch.stack([u, i]), torch.stack([i, u])], 1)
A = torch.sparse_coo_tensor(index, torch.full((index.shape[1],), 0.02), (n, n)).coalesce().to_sparse_csr()
E0 = nn.Parameter(torch.randn(n, d) * 0.1)
opt = torch.optim.Adam([E0], lr=1e-3)
for step in range(110):
    e, total = E0, E0
    for _ in range(layers):
        e = A @ e
        total = total + e
    out = total / (layers + 1)
    b = torch.randint(0, len(u), (4096,))
    neg = torch.randint(users, n, (4096,))
    x = out[u[b]]
    loss = nn.functional.softplus((x * out[neg]).sum(-1) - (x * out[i[b]]).sum(-1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, loss.item())
