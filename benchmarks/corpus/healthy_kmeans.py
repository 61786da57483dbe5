import torch

torch.manual_seed(0)
x = torch.randn(60_000, 64)
centres = x[:200].clone()
for it in range(60):
    d = torch.cdist(x, centres)
    nearest = d.argmin(1)
    sums = torch.zeros_like(centres).index_add_(0, nearest, x)
    centres = sums / torch.bincount(nearest, minlength=200).clamp(min=1).unsqueeze(1)
print(d.min(1).values.mean())
