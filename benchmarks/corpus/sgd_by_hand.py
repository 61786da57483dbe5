import torch
import torch.nn.functional as F

torch.manual_seed(0)
U = (torch.randn(150_000, 24) * 0.1).requires_grad_()
V = (torch.randn(80_000, 24) * 0.1).requires_grad_()
b = torch.zeros(80_000, requires_grad=True)
params = [U, V, b]
lr, wd = 0.5, 1e-5
for step in range(300):
    u = torch.randint(0, 150_000, (1024,))
    i = torch.randint(0, 80_000, (1024,))
    y = torch.rand(1024).round()
    logit = (F.embedding(u, U) * F.embedding(i, V)).sum(-1) + b[i]
    loss = F.binary_cross_entropy_with_logits(logit, y)
    loss.backward()
    with torch.no_grad():
        for p in params:
            p -= lr * (p.grad + wd * p)
            p.grad.zero_()
    if step % 100 == 0:
        print(step, loss.item())
